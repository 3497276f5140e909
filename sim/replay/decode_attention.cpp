#include "sim/replay/decode_slots.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {

OwnerAttention::OwnerAttention(LayerWork& work, const Settings& settings)
    : work_(work), settings_(settings),
      reads_attention_(scores_rows(settings) || merges(settings) ||
                       chosen<Merge>(settings).uses_attention()) {}

const float* OwnerAttention::attend(const SlotCache& cache, const float* queries) {
  const LayerTrace& layer = work_.trace();
  const int heads = cache.heads();
  const bool weighs = write_weights(cache);
  SlotRows rows;
  rows.heads = heads;
  rows.sinks = sinks_from(layer, cache.first_head());
  rows.rows = 1;
  rows.queries = queries;
  rows.segments = {
      {keys_in_place(cache), cache.values(), cache.size(), weighs ? weights_.data() : nullptr}};
  if (reads_attention_) rows.attention = shares_.reserve(heads * cache.size());
  if (merges(settings_)) rows.logits = rows_.reserve(heads * cache.size());
  rows.outputs = outputs_.reserve(heads * cache.value_dim());
  work_.backend().attend(layer, {&rows, 1});
  if (reads_attention_) read(cache, weighs);
  return rows.outputs;
}

/// Keys of the slots as the newest query meets them. With positions=cache slot r moves to position
/// r and the query to its own slot number s; only differences count, so the query stays and slot r
/// moves by (r - its position) + (the query's position - s).
const float* OwnerAttention::keys_in_place(const SlotCache& cache) {
  if (!moves_positions(settings_)) return cache.keys();
  const int64_t newest = cache.size() - 1;
  moved_keys_.assign(cache.keys(), cache.keys() + cache.size() * cache.key_dim());
  for (int64_t r = 0; r < cache.size(); ++r) {
    const int64_t by = (r - cache.position(r)) + (cache.position(newest) - newest);
    if (by == 0) continue;
    rotation_.rotate(
        work_.rotation(), by,
        std::span(moved_keys_).subspan(cache.row(r) * cache.key_dim(), cache.key_dim()));
  }
  return moved_keys_.data();
}

/// Log-weights of the cache's rows; false where the record knows none.
bool OwnerAttention::write_weights(const SlotCache& cache) {
  const Votes& votes = votes_of(settings_);
  if (!votes.weighs()) return false;
  float* const weights = weights_.reserve(cache.heads() * cache.size());
  for (int x = 0; x < cache.heads(); ++x)
    for (int64_t s = 0; s < cache.size(); ++s)
      weights[x * cache.size() + cache.row(s)] = static_cast<float>(votes.log_weight(cache, s, x));
  return true;
}

/// Attention and, where slots merge, logits without log-weights, by slot.
void OwnerAttention::read(const SlotCache& cache, bool weighs) {
  const int64_t slots = cache.size();
  if (attention_.columns() != slots) attention_ = Table<double>(cache.heads(), slots);
  for (int x = 0; x < cache.heads(); ++x) {
    const float* const shares = shares_.data() + x * slots;
    double* const attention = attention_.row(x).data();
    for (int64_t s = 0; s < slots; ++s) attention[s] = static_cast<double>(shares[cache.row(s)]);
  }
  if (!merges(settings_)) return;
  logits_ = Table<double>(cache.heads(), slots);
  for (int x = 0; x < cache.heads(); ++x) {
    const float* const logits = rows_.data() + x * slots;
    const float* const weights = weighs ? weights_.data() + x * slots : nullptr;
    for (int64_t s = 0; s < slots; ++s) {
      const int64_t row = cache.row(s);
      logits_(x, s) = static_cast<double>(logits[row]) -
                      (weighs ? static_cast<double>(weights[row]) : 0.0);
    }
  }
}

/// Those of the mean query are the mean of the heads' (logits are linear in the query here).
void OwnerAttention::show(const SlotCache& cache, Estimates& estimates) const {
  if (chosen<Merge>(settings_).estimates() == EstimateLines::every_head) {
    for (int x = 0; x < cache.heads(); ++x) estimates.see(x, logits_.row(x));
    return;
  }
  std::vector<double> mean(cache.size(), 0.0);
  for (int x = 0; x < cache.heads(); ++x)
    for (int64_t s = 0; s < std::ssize(mean); ++s) mean[s] += logits_(x, s) / cache.heads();
  estimates.see(0, mean);
}

}  // namespace kvsim
