// Measures of one step of decoding: slots present against the full cache.
#include "sim/replay/decode_run.hpp"
#include "sim/stages/merge/merge.hpp"

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
        for (int64_t x = inside.begin; x < inside.end; ++x) of_parts[part] += gains[x];
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
  const std::span<const int64_t> present(cache.positions().data(),
                                         cache.size() - (block.count_query ? 0 : 1));
  std::vector<int64_t> guarded;
  for (size_t s = 0; block.leave_out_guarded && s < present.size(); ++s)
    if (protection_.holds(owner, cache, static_cast<int64_t>(s))) guarded.push_back(present[s]);
  Entries kept(present, *block.parts), safe(guarded, *block.parts);
  for (int head = cache.first_head(); head < cache.first_head() + cache.heads(); ++head) {
    for (Entries* const entries : {&kept, &safe})
      entries->add_up(block.attention(head, step), block.importance->row(head).data(),
                      gains_[owner]);
    for (const auto& [to, from] : {std::pair(&series.kept, &kept), {&series.guarded, &safe}}) {
      to->attention(head, step) = from->attention;
      to->importance(head, step) = from->importance;
      to->squares(head, step) = from->squares;
    }
    series.guarded_entries(head, step) = static_cast<double>(guarded.size());
    for (size_t part = 0; part < block.parts->size(); ++part) {
      series.part_kept[part](head, step) = kept.of_parts[part];
      series.part_guarded[part](head, step) = safe.of_parts[part];
    }
  }
  if (!merges(settings_)) return;
  for (int x = 0; x < cache.heads(); ++x) compare_merged(owner, x, block, step, series.merges);
}

void DecodeRun::compare_merged(size_t owner, int x, const DecodeBlock& block, int64_t step,
                               MergeTally& tally) const {
  const SlotCache& cache = owners_[owner];
  const Votes& votes = votes_of(settings_);
  const int head = cache.first_head() + x;
  const FullRow full{block.attention(head, step), block.logits(head, step),
                     block.log_sum_exp(head, step)};
  std::vector<float> value(cache.value_dim());
  const auto value_of = [&](uint32_t entry) {
    work_.trace().v.read(cache.first_head() / work_.group_size(), entry, entry + 1, value.data());
    return std::span<const float>(value);
  };
  MergeTally::Row sums = tally.row_of(head);
  for (int64_t s = 0; s < cache.size(); ++s) {
    if (cache.members(s).empty()) continue;
    const SlotMembers all = sum_members(cache.members(s), static_cast<uint32_t>(cache.position(s)),
                                        full, block.importance->row(head));
    sums.add_members(all.merged_attention, all.merged_importance);
    const double logit = attention_[owner].logits()(x, s) + votes.log_weight(cache, s, x);
    sums.add_slot(all.attention, attention_[owner].attention()(x, s), logit - all.log_mass);
    if (tally.wants_changes())
      sums.add_change(
          change_by_slot(work_, head, work_.info().first_step() + block.first_step + step, full,
                         cache.members(s), all.attention, all.log_mass, logit - all.log_mass,
                         cache.value(s), block.z(head, step, cache.value_dim()), value_of));
  }
  tally.add(head, step, sums);
}

}  // namespace kvsim
