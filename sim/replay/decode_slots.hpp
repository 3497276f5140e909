#pragma once
#include "sim/replay/compression.hpp"
#include "sim/replay/slots.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"

/// Slots of one layer while it decodes: how a query attends to them, what protects them, what they
/// score, and which leave (policies.md 12). `owners` are the caches of the layer; whoever is given
/// them reads them and does not change them.
namespace kvsim {

/// body(owner) for all owners, in parallel where so many steps are worth the start of a parallel
/// loop.
template <class Body>
void for_owners(const std::vector<SlotCache>& owners, int64_t steps, const Body& body) {
  constexpr int64_t kWorthThreads = int64_t{1} << 22;  // about a millisecond of one core
  int64_t work = 0;
  for (const SlotCache& cache : owners)
    work += steps * cache.size() * cache.heads() * (cache.key_dim() + cache.value_dim());
  if (work < kWorthThreads) {
    for (size_t owner = 0; owner < owners.size(); ++owner) body(owner);
    return;
  }
  parallel_for(std::ssize(owners), [&](int64_t owner) { body(owner); });
}

/// One owner's attention at the step at work.
class OwnerAttention {
 public:
  OwnerAttention(LayerWork& work, const Settings& settings)
      : work_(work), settings_(settings),
        reads_attention_(scores_rows(settings) || merges(settings) ||
                         chosen<Merge>(settings).uses_attention()) {}

  /// Softmax of the queries [heads][d] of the step over the slots present, log-weights and sink
  /// included; returns the outputs [heads][dv].
  const float* attend(const SlotCache& cache, const float* queries) {
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
  /// Estimates see the slots' own logits: keys as stored, no log-weights.
  /// Those of the mean query are the mean of the heads' (logits are linear in the query here).
  void show(const SlotCache& cache, Estimates& estimates) const {
    if (chosen<Merge>(settings_).estimates() == EstimateLines::every_head) {
      for (int x = 0; x < cache.heads(); ++x) estimates.see(x, logits_.row(x));
      return;
    }
    std::vector<double> mean(cache.size(), 0.0);
    for (int x = 0; x < cache.heads(); ++x)
      for (int64_t s = 0; s < std::ssize(mean); ++s) mean[s] += logits_(x, s) / cache.heads();
    estimates.see(0, mean);
  }

  /// [heads][slots] A^, and logits of the slots' own keys; where something asks for them.
  const Table<double>& attention() const { return attention_; }
  const Table<double>& logits() const { return logits_; }

 private:
  /// Keys of the slots as the newest query meets them. With positions=cache slot r moves to
  /// position r and the query to its own slot number s; only differences count, so the query stays
  /// and slot r moves by (r - its position) + (the query's position - s).
  const float* keys_in_place(const SlotCache& cache) {
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
  bool write_weights(const SlotCache& cache) {
    const Votes& votes = votes_of(settings_);
    if (!votes.weighs()) return false;
    float* const weights = weights_.reserve(cache.heads() * cache.size());
    for (int x = 0; x < cache.heads(); ++x)
      for (int64_t s = 0; s < cache.size(); ++s)
        weights[x * cache.size() + cache.row(s)] = static_cast<float>(
            votes.log_weight(cache, s, x));
    return true;
  }
  /// Attention and, where slots merge, logits without log-weights, by slot.
  void read(const SlotCache& cache, bool weighs) {
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

  LayerWork& work_;
  const Settings& settings_;
  bool reads_attention_;  ///< of slots: statistics or merging
  Table<double> attention_, logits_;
  std::vector<float> moved_keys_;  ///< [rows][d], positions=cache only
  RotationMemory rotation_;
  Buffer<float> outputs_;         ///< [heads][dv]
  Buffer<float> rows_, weights_;  ///< [heads][rows of the cache] logits, log-weights
  Buffer<float> shares_;          ///< [heads][rows of the cache] attention
};

/// Slots that no score can evict: whitelist, sinks, the newest, and with keep_prompt the prompt.
class SlotProtection {
 public:
  SlotProtection(const LayerWork& work, const KeptSets& kept, const Settings& settings)
      : entries_(work.entries()), sinks_(settings.count(keys::sinks)),
        keeps_prompt_(settings.flag(keys::keep_prompt)),
        listed_(listed_entries(
            resolve_spans(settings.list(keys::whitelist), work.info().spans, work.entries()),
            work.entries())) {
    any_listed_ = contains(listed_, 1);
    const auto& queries = chosen<Queries>(settings);
    for (const int64_t b : kept.places) {
      window_.push_back(queries.window(settings, b, work.info().total_len));
      newest_.push_back(std::max(window_.back(), newest_protected(settings, work.layer(), b)));
    }
  }

  bool holds(size_t owner, const SlotCache& cache, int64_t slot) const {
    const int64_t position = cache.position(slot);
    return slot >= cache.size() - newest_[owner] || position < sinks_ ||
           (position < entries_ && (keeps_prompt_ || (any_listed_ && listed_[position])));
  }
  int64_t window(size_t owner) const { return window_[owner]; }  ///< newest that are not scored
  int64_t newest(size_t owner) const { return newest_[owner]; }  ///< newest that stay
  /// Position behind the sinks, and behind the prompt where it stays.
  int64_t first_open() const { return keeps_prompt_ ? std::max(sinks_, entries_) : sinks_; }

 private:
  int64_t entries_, sinks_;
  bool keeps_prompt_, any_listed_;
  std::vector<uint8_t> listed_;           ///< [n] 1: on the record's whitelist
  std::vector<int64_t> window_, newest_;  ///< [owners]
};

}  // namespace kvsim
