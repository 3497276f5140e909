// Measures of one step of decoding: slots present against the full cache.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/core/log_sum.hpp"
#include "sim/replay/decode_run.hpp"
#include "sim/stages/merge/votes.hpp"

namespace kvsim {

namespace {

/// Entries of the full cache, ascending, and where some parts of the prompt lie among them.
class Entries {
 public:
  Entries(std::span<const int64_t> entries, const PromptParts& parts) : entries_(entries) {
    for (const std::vector<Range>& ranges : parts) {
      std::vector<Range>& inside = parts_.emplace_back();
      for (const Range range : ranges) {
        const auto first = std::ranges::lower_bound(entries, range.begin);
        const auto last = std::ranges::lower_bound(entries, range.end);
        inside.push_back({first - entries.begin(), last - entries.begin()});
      }
    }
  }

  /// Sums of one head at one step.
  void add_up(const float* full, const float* weight, std::vector<double>& gains) {
    gains.resize(entries_.size());
    attention = importance = squares = 0;
    for (size_t x = 0; x < entries_.size(); ++x) {
      const auto a = static_cast<double>(full[entries_[x]]);
      const double gain = gains[x] = a * static_cast<double>(weight[entries_[x]]);
      attention += a;
      importance += gain;
      squares += gain * gain;
    }
    of_parts.assign(parts_.size(), 0.0);
    for (size_t part = 0; part < parts_.size(); ++part)
      for (const Range inside : parts_[part])
        for (int64_t x = inside.begin; x < inside.end; ++x)
          of_parts[part] += gains[static_cast<size_t>(x)];
  }

  double attention = 0, importance = 0, squares = 0;
  std::vector<double> of_parts;  ///< importance of each part

 private:
  std::span<const int64_t> entries_;
  std::vector<std::vector<Range>> parts_;  ///< numbers of entries
};

}  // namespace

/// Attention and importance of the full cache on the slots present that are before the query.
void DecodeRun::compare(size_t owner, const DecodeBlock& block, int64_t step,
                        DecodeSeries& series) {
  const SlotCache& cache = owners_[owner];
  const std::span<const int64_t> present(
      cache.positions().data(), static_cast<size_t>(cache.size() - (block.count_query ? 0 : 1)));
  std::vector<int64_t> guarded;
  for (size_t s = 0; block.leave_out_guarded && s < present.size(); ++s)
    if (is_protected(owner, static_cast<int64_t>(s))) guarded.push_back(present[s]);
  Entries kept(present, *block.parts), safe(guarded, *block.parts);
  for (int head = cache.first_head(); head < cache.first_head() + cache.heads(); ++head) {
    for (Entries* const entries : {&kept, &safe})
      entries->add_up(block.attention(head, step), block.importance->row(head).data(),
                      scratch_[owner].gains);
    series.kept_attention(head, step) = kept.attention;
    series.kept_importance(head, step) = kept.importance;
    series.kept_squares(head, step) = kept.squares;
    series.guarded_attention(head, step) = safe.attention;
    series.guarded_importance(head, step) = safe.importance;
    series.guarded_squares(head, step) = safe.squares;
    series.guarded_entries(head, step) = static_cast<double>(guarded.size());
    for (size_t part = 0; part < block.parts->size(); ++part) {
      series.part_kept[part](head, step) = kept.of_parts[part];
      series.part_guarded[part](head, step) = safe.of_parts[part];
    }
  }
  if (!merges(settings_)) return;
  for (int x = 0; x < cache.heads(); ++x) compare_merged(owner, x, block, step, series.merges);
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
  MergeTally::Row sums = tally.row_of(head);
  for (int64_t s = 0; s < cache.size(); ++s) {
    if (cache.members(s).empty()) continue;
    const Members all = members_of(cache, s, block, head, step);
    sums.add_members(all.merged_attention, all.merged_importance);
    const double logit = scratch_[owner].logits(x, s) + votes.log_weight(cache, s, x);
    sums.add_slot(all.attention, scratch_[owner].attention(x, s), logit - all.log_mass);
    if (!tally.wants_changes()) continue;
    const std::vector<double> mean = member_mean(cache, s, block.logits(head, step), all.log_mass);
    const std::span<const double> v_m(mean);
    if (all.attention > kNearlyAll) {
      const int64_t query = work_.info().first_step() + block.first_step + step;
      const RestAttention rest = rest_attention(work_.backend(), work_.trace(), head, {&query, 1},
                                                cache.members(s));
      tally.add_change(head, step,
                       slot_change_beside(all.log_mass - rest.log_mass[0], logit - all.log_mass,
                                          v_m, cache.value(s), rest.mean.row(0)));
      continue;
    }
    const std::span<const float> z(block.z(head, step, cache.value_dim()), mean.size());
    tally.add_change(head, step,
                     slot_change(all.attention, logit - all.log_mass, v_m, cache.value(s), z));
  }
  tally.add(head, step, sums);
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
