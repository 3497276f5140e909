#include "sim/replay/decode_run.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/core/log_sum.hpp"
#include "sim/core/parallel.hpp"
#include "sim/replay/decode_scratch.hpp"
#include "sim/replay/full_rest.hpp"
#include "sim/stages/merge/votes.hpp"
#include "sim/stages/weight/weight.hpp"

namespace kvsim {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<const Matrix>;

/// W^h of heads first..first+count-1, [dv][D] each.
std::vector<Table<float>> output_slices(const LayerTrace& layer, int first, int count) {
  std::vector<Table<float>> slices;
  for (int x = 0; x < count; ++x) {
    Table<float>& slice = slices.emplace_back(layer.wo.dim(1), layer.wo.dim(2));
    layer.wo.read(first + x, 0, layer.wo.dim(1), slice.data());
  }
  return slices;
}

const Weight& weight_of(const Settings& settings) {
  return Kinds<Weight>::find(settings.text("weight"));
}

}  // namespace

const float* DecodeBlock::attention(int head, int64_t step) const {
  const int group = heads.front().heads;
  return heads[static_cast<size_t>(head / group)].attention_row(head % group, step);
}
const float* DecodeBlock::logits(int head, int64_t step) const {
  const int group = heads.front().heads;
  return heads[static_cast<size_t>(head / group)].logit_row(head % group, step);
}
const float* DecodeBlock::z(int head, int64_t step, int64_t width) const {
  const AttentionBlock& block = heads[static_cast<size_t>(head / heads.front().heads)];
  return block.outputs.data() + ((head % block.heads) * block.rows + step) * width;
}

DecodeSeries::DecodeSeries(int64_t heads, int64_t steps, int64_t width, size_t parts)
    : kept_attention(heads, steps), kept_importance(heads, steps), guarded_attention(heads, steps),
      guarded_importance(heads, steps), kept_squares(heads, steps), guarded_squares(heads, steps),
      guarded_entries(heads, steps), part_kept(parts, Table<double>(heads, steps)),
      part_guarded(parts, Table<double>(heads, steps)),
      delta(static_cast<size_t>(heads * steps * width)), merges(heads, steps) {}

DecodeRun::~DecodeRun() = default;

DecodeRun::DecodeRun(LayerWork& work, const KeptSets& kept, const Settings& settings,
                     uint64_t seed)
    : work_(work), kept_(kept), settings_(settings), seed_(seed),
      whitelisted_(listed_entries(work.info(), settings)), scratch_(kept.owners.size()) {
  if (Kinds<Indicator>::find(settings.text("indicator")).axes() == Axes::entry) return;
  prompt_ = std::make_unique<PromptStatistics>(
      work, settings, decode_segment(settings, kept.budget, work.info()));
}

void DecodeRun::start() {
  Compressed compressed = compress(work_, kept_, settings_, seed_, memory_, note_pairs_);
  owners_ = std::move(compressed.owners);
  undefined_scales_ = compressed.undefined_scales;
  scales_ = std::move(compressed.scales);
  for (PairMerge& pair : compressed.pairs) add_pair(std::move(pair));
  if (prompt_) {
    scores_ = prompt_->take_scores();
    deviations_ = prompt_->take_deviations();
    prompt_.reset();
  }
  for (size_t o = 0; o < owners_.size(); ++o)
    merge_statistics(o, compressed.steps[o], compressed.evicted[o]);
  const Weight& weight = weight_of(settings_);
  if (weight.changes_nothing()) return;
  weights_.resize(owners_.size());
  outputs_.resize(owners_.size());
  for (size_t o = 0; o < owners_.size(); ++o) {
    const SlotCache& cache = owners_[o];
    if (weight.needs_outputs())
      outputs_[o] = output_slices(work_.trace(), cache.first_head(), cache.heads());
    weights_[o].resize(static_cast<size_t>(cache.size()));
    for (int64_t s = 0; s < cache.size(); ++s) weigh(o, s);
  }
}

void DecodeRun::weigh(size_t owner, int64_t slot) {
  weights_[owner][static_cast<size_t>(slot)] =
      weight_of(settings_).of_value(owners_[owner].value(slot), outputs_[owner]);
}

void DecodeRun::for_owners(const std::function<void(size_t)>& body) const {
  constexpr int64_t kWorthThreads = int64_t{1} << 22;   // about a millisecond of one core
  int64_t work = 0;
  for (const SlotCache& cache : owners_)
    work += cache.size() * cache.heads() * (cache.key_dim() + cache.value_dim());
  if (work < kWorthThreads) {
    for (size_t owner = 0; owner < owners_.size(); ++owner) body(owner);
    return;
  }
  parallel_for(static_cast<int64_t>(owners_.size()),
               [&](int64_t owner) { body(static_cast<size_t>(owner)); });
}

void DecodeRun::step(const DecodeBlock& block, int64_t step, DecodeSeries& series) {
  const int64_t position = block.heads.front().positions[static_cast<size_t>(step)];
  for_owners([&](size_t owner) {
    append(owner, position);
    attend(owner, block, step, series);
    see_estimates(owner);
  });
  update_statistics();
  evict();
}

void DecodeRun::append(size_t owner, int64_t position) {
  SlotCache& cache = owners_[owner];
  const LayerTrace& layer = work_.trace();
  const int kv = cache.first_head() / work_.group_size();
  std::vector<float> k(static_cast<size_t>(cache.key_dim()));
  std::vector<float> v(static_cast<size_t>(cache.value_dim()));
  layer.k.read(kv, position, position + 1, k.data());
  layer.v.read(kv, position, position + 1, v.data());
  cache.append(position, k, v);
  if (!scores_.empty()) scores_[owner]->append();
  if (!deviations_.empty()) deviations_[owner]->append();
  if (!weights_.empty()) {
    weights_[owner].push_back(0);
    weigh(owner, cache.size() - 1);
  }
}

/// Keys of the slots as the query at `position` meets them. With positions=cache slot r moves to
/// position r and the query to its own slot number s; only differences count, so the query stays
/// and slot r moves by (r - its position) + (position - s).
const float* DecodeRun::keys_in_place(size_t owner, int64_t position) {
  const SlotCache& cache = owners_[owner];
  if (!settings_.is("positions", "cache")) return cache.keys();
  const auto d = static_cast<size_t>(cache.key_dim());
  std::vector<float>& moved = scratch_[owner].moved_keys;
  moved.assign(cache.keys(), cache.keys() + cache.size() * cache.key_dim());
  for (int64_t r = 0; r < cache.size(); ++r) {
    const int64_t by = (r - cache.position(r)) + (position - (cache.size() - 1));
    if (by != 0)
      rotate_key(work_.info(), by, {moved.data() + static_cast<size_t>(r) * d, d});
  }
  return moved.data();
}

/// Softmax of one query over the slots present, log-weights and sink included; z^ - z.
void DecodeRun::attend(size_t owner, const DecodeBlock& block, int64_t step,
                       DecodeSeries& series) {
  const SlotCache& cache = owners_[owner];
  const LayerTrace& layer = work_.trace();
  Scratch& scratch = scratch_[owner];
  const int64_t position = cache.position(cache.size() - 1);
  const int64_t row = work_.info().first_step() + block.first_step + step;
  Table<float> queries(cache.heads(), cache.key_dim());
  for (int x = 0; x < cache.heads(); ++x)
    layer.q.read(cache.first_head() + x, row, row + 1, queries.row(x).data());
  const Matrix products = View(queries.data(), cache.heads(), cache.key_dim()) *
                          View(keys_in_place(owner, position), cache.size(), cache.key_dim())
                              .transpose();
  scratch.resize(cache.heads(), cache.size());
  const Votes& votes = votes_of(settings_);
  for (int x = 0; x < cache.heads(); ++x) {
    const int head = cache.first_head() + x;
    const auto logits = scratch.logits.row(x);
    const auto attention = scratch.attention.row(x);
    const double sink = layer.attention_sink.empty()
                            ? -std::numeric_limits<double>::infinity()
                            : static_cast<double>(layer.attention_sink[static_cast<size_t>(head)]);
    double largest = sink;
    for (int64_t s = 0; s < cache.size(); ++s) {
      double logit = static_cast<double>(products(x, s)) * layer.scale;
      if (layer.softcap != 0) logit = layer.softcap * std::tanh(logit / layer.softcap);
      logits[static_cast<size_t>(s)] = logit;
      const double weighted = logit + votes.log_weight(cache, s, x);
      attention[static_cast<size_t>(s)] = weighted;
      largest = std::max(largest, weighted);
    }
    double sum = std::exp(sink - largest);
    for (double& a : attention) sum += a = std::exp(a - largest);
    Eigen::VectorXd mean = Eigen::VectorXd::Zero(cache.value_dim());
    for (int64_t s = 0; s < cache.size(); ++s) {
      double& a = attention[static_cast<size_t>(s)];
      a /= sum;
      mean += a * Eigen::Map<const Eigen::VectorXf>(cache.value(s).data(), cache.value_dim())
                      .cast<double>();
    }
    const float* z = block.z(head, step, cache.value_dim());
    float* delta = series.delta.data() + (head * block.steps + step) * cache.value_dim();
    for (int64_t c = 0; c < cache.value_dim(); ++c)
      delta[c] = static_cast<float>(mean[c] - static_cast<double>(z[c]));
    compare(owner, x, block, step, series);
  }
}

/// Attention and importance of the full cache on the slots present that are before the query.
void DecodeRun::compare(size_t owner, int x, const DecodeBlock& block, int64_t step,
                        DecodeSeries& series) const {
  const SlotCache& cache = owners_[owner];
  const int head = cache.first_head() + x;
  const float* full = block.attention(head, step);
  const auto importance = block.importance->row(head);
  const std::vector<uint8_t> guarded =
      block.leave_out_guarded ? protection(owner) : std::vector<uint8_t>();
  double kept = 0, kept_gain = 0, kept_squares = 0;
  double safe = 0, safe_gain = 0, safe_squares = 0;
  const int64_t last = cache.size() - (block.count_query ? 0 : 1);
  for (int64_t s = 0; s < last; ++s) {
    const auto i = static_cast<size_t>(cache.position(s));
    const auto a = static_cast<double>(full[i]);
    const double gain = a * static_cast<double>(importance[i]);
    kept += a;
    kept_gain += gain;
    kept_squares += gain * gain;
    const bool is_safe = !guarded.empty() && guarded[static_cast<size_t>(s)];
    for (size_t part = 0; part < block.parts->size(); ++part) {
      const auto holds = [&](Range range) { return range.contains(cache.position(s)); };
      if (std::ranges::none_of((*block.parts)[part], holds)) continue;
      series.part_kept[part](head, step) += gain;
      if (is_safe) series.part_guarded[part](head, step) += gain;
    }
    if (!is_safe) continue;
    safe += a;
    safe_gain += gain;
    safe_squares += gain * gain;
    series.guarded_entries(head, step) += 1;
  }
  series.kept_attention(head, step) = kept;
  series.kept_importance(head, step) = kept_gain;
  series.guarded_attention(head, step) = safe;
  series.guarded_importance(head, step) = safe_gain;
  series.kept_squares(head, step) = kept_squares;
  series.guarded_squares(head, step) = safe_squares;
  if (merges(settings_)) compare_merged(owner, x, block, step, series.merges);
}

void DecodeRun::compare_merged(size_t owner, int x, const DecodeBlock& block, int64_t step,
                               MergeTally& tally) const {
  const SlotCache& cache = owners_[owner];
  const Votes& votes = votes_of(settings_);
  const int head = cache.first_head() + x;
  const float* full = block.attention(head, step);
  const float* logits = block.logits(head, step);
  for (int64_t s = 0; s < cache.size(); ++s) {
    if (cache.members(s).empty()) continue;
    double together = -std::numeric_limits<double>::infinity();
    double mass = 0;
    for (const uint32_t entry : cache.members(s)) {
      const auto a = static_cast<double>(full[entry]);
      together = log_add(together, static_cast<double>(logits[entry]));
      mass += a;
      if (entry == cache.position(s)) continue;
      tally.add_member(head, step, a,
                       a * static_cast<double>((*block.importance)(head, entry)));
    }
    const double logit = scratch_[owner].logits(x, s) + votes.log_weight(cache, s, x);
    tally.add_slot(head, step, mass, scratch_[owner].attention(x, s), logit - together);
    if (!tally.wants_changes()) continue;
    const std::vector<double> mean = member_mean(cache, s, logits, together);
    const std::span<const double> v_m(mean);
    if (mass > kNearlyAll) {
      const FullRest rest =
          full_rest(work_.trace(), head, block.first_step + step, cache.members(s));
      tally.add_change(head, step,
                       slot_change_beside(together - rest.log_mass, logit - together, v_m,
                                          cache.value(s), std::span<const double>(rest.mean)));
      continue;
    }
    const std::span<const float> z(block.z(head, step, cache.value_dim()), mean.size());
    tally.add_change(head, step, slot_change(mass, logit - together, v_m, cache.value(s), z));
  }
}

/// Mean value of a slot's entries, weighted by exp(logit); `together` is the log of their sum.
std::vector<double> DecodeRun::member_mean(const SlotCache& cache, int64_t slot,
                                           const float* logits, double together) const {
  std::vector<double> mean(static_cast<size_t>(cache.value_dim()), 0.0);
  std::vector<float> value(mean.size());
  for (const uint32_t entry : cache.members(slot)) {
    work_.trace().v.read(cache.first_head() / work_.group_size(), entry, entry + 1, value.data());
    const double weight = std::exp(static_cast<double>(logits[entry]) - together);
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += weight * static_cast<double>(value[c]);
  }
  return mean;
}

/// Estimates see the slots' own logits: keys as stored, no log-weights. Those of the mean query are
/// the mean of the heads' (logits are linear in the query here).
void DecodeRun::see_estimates(size_t owner) {
  SlotCache& cache = owners_[owner];
  Estimates* estimates = cache.estimates();
  if (estimates == nullptr) return;
  const Table<double>& logits = scratch_[owner].logits;
  const auto& merge = Kinds<Merge>::find(settings_.text("merge"));
  if (merge.estimates() == EstimateLines::every_head) {
    for (int x = 0; x < cache.heads(); ++x) estimates->see(x, logits.row(x));
    return;
  }
  std::vector<double> mean(static_cast<size_t>(cache.size()), 0.0);
  for (int x = 0; x < cache.heads(); ++x)
    for (size_t s = 0; s < mean.size(); ++s)
      mean[s] += logits(x, static_cast<int64_t>(s)) / cache.heads();
  estimates->see(0, mean);
}

}  // namespace kvsim
