// What decoding measures of one step: slots present against the full cache.
#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/core/log_sum.hpp"
#include "sim/replay/decode_scratch.hpp"
#include "sim/replay/full_rest.hpp"
#include "sim/stages/merge/votes.hpp"

namespace kvsim {

/// Attention and importance of the full cache on the slots present that are before the query.
void DecodeRun::compare(size_t owner, int x, const DecodeBlock& block, int64_t step,
                        DecodeSeries& series) const {
  const SlotCache& cache = owners_[owner];
  const int head = cache.first_head() + x;
  const float* full = block.attention(head, step);
  const auto importance = block.importance->row(head);
  const std::vector<uint8_t> guarded = block.leave_out_guarded ? protection(owner)
                                                               : std::vector<uint8_t>();
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

/// One look at each member's attention. Where that is next to nothing, float32 has lost it, and the
/// logits are summed instead.
DecodeRun::Members DecodeRun::members_of(const SlotCache& cache, int64_t slot,
                                         const DecodeBlock& block, int head, int64_t step) const {
  constexpr double kLostInFloat = 1e-30;
  const float* full = block.attention(head, step);
  const auto importance = block.importance->row(head);
  const auto own = static_cast<uint32_t>(cache.position(slot));
  Members all;
  for (const uint32_t entry : cache.members(slot)) {
    const auto a = static_cast<double>(full[entry]);
    all.attention += a;
    if (entry == own) continue;
    all.merged_attention += a;
    all.merged_importance += a * static_cast<double>(importance[entry]);
  }
  if (all.attention > kLostInFloat) {
    all.log_mass = std::log(all.attention) + block.log_sum_exp(head, step);
    return all;
  }
  const float* logits = block.logits(head, step);
  all.log_mass = -std::numeric_limits<double>::infinity();
  for (const uint32_t entry : cache.members(slot))
    all.log_mass = log_add(all.log_mass, static_cast<double>(logits[entry]));
  return all;
}

void DecodeRun::compare_merged(size_t owner, int x, const DecodeBlock& block, int64_t step,
                               MergeTally& tally) const {
  const SlotCache& cache = owners_[owner];
  const Votes& votes = votes_of(settings_);
  const int head = cache.first_head() + x;
  for (int64_t s = 0; s < cache.size(); ++s) {
    if (cache.members(s).empty()) continue;
    const Members all = members_of(cache, s, block, head, step);
    tally.add_member(head, step, all.merged_attention, all.merged_importance);
    const double logit = scratch_[owner].logits(x, s) + votes.log_weight(cache, s, x);
    tally.add_slot(head, step, all.attention, scratch_[owner].attention(x, s),
                   logit - all.log_mass);
    if (!tally.wants_changes()) continue;
    const std::vector<double> mean = member_mean(cache, s, block.logits(head, step), all.log_mass);
    const std::span<const double> v_m(mean);
    if (all.attention > kNearlyAll) {
      const FullRest rest = full_rest(work_.trace(), head, block.first_step + step,
                                      cache.members(s));
      tally.add_change(head, step,
                       slot_change_beside(all.log_mass - rest.log_mass, logit - all.log_mass, v_m,
                                          cache.value(s), std::span<const double>(rest.mean)));
      continue;
    }
    const std::span<const float> z(block.z(head, step, cache.value_dim()), mean.size());
    tally.add_change(head, step,
                     slot_change(all.attention, logit - all.log_mass, v_m, cache.value(s), z));
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

}  // namespace kvsim
