// Measures of one step of decoding: slots present against the full cache.
#include "sim/replay/decode.hpp"

#include <Eigen/Core>

#include "sim/core/numbers.hpp"
#include "sim/replay/compression.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

constexpr int64_t kBlockValues = int64_t{1} << 24;  // attention of all heads: 64 MB at a time
constexpr int64_t kMostSteps = 64;

using Floats = Eigen::Map<const Eigen::ArrayXf>;

ShareSums difference(ShareSums all, const ShareSums& less) {
  for (const auto part : {&ShareSums::attention, &ShareSums::importance, &ShareSums::squares})
    for (size_t x = 0; x < (all.*part).values().size(); ++x)
      (all.*part).values()[x] -= (less.*part).values()[x];
  return all;
}

/// [parts][steps] from [parts][Hq][steps], with or without what is guarded of it.
Table<double> over_heads(const std::vector<Table<double>>& parts,
                         const std::vector<Table<double>>& guarded, bool leave_out) {
  if (parts.empty()) return {};
  Table<double> sums(std::ssize(parts), parts[0].columns());
  for (int64_t part = 0; part < std::ssize(parts); ++part)
    for (int64_t h = 0; h < parts[part].rows(); ++h)
      for (int64_t s = 0; s < sums.columns(); ++s)
        sums(part, s) += parts[part](h, s) - (leave_out ? guarded[part](h, s) : 0.0);
  return sums;
}

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

DecodeReplay::DecodeReplay(LayerWork& work, const LayerKept& kept,
                           const std::vector<Record>& records, const PrefillOptions& options)
    : work_(work), options_(options) {
  for (size_t r = 0; r < kept.size(); ++r)
    for (size_t b = 0; b < kept[r].size(); ++b) {
      if (kept[r][b] == nullptr) continue;
      ReplayOutcome& outcome = outcomes_.emplace_back();
      outcome.cells = {{static_cast<int>(r), static_cast<int>(b)}};
      outcome.kept = outcome.first_kept = kept[r][b];
      outcome.settings = &records[r].settings;
      outcome.changed = true;
      outcome.merging = merges(records[r].settings);
      outcome.shares_defined = !moves_positions(records[r].settings);
    }
}

/// Prompt statistics of all runs share passes over the attention, then every run compresses.
void DecodeReplay::start_runs(std::vector<std::unique_ptr<DecodeRun>>& runs) {
  std::vector<RowConsumer*> consumers;
  for (const ReplayOutcome& outcome : outcomes_) {
    runs.push_back(
        std::make_unique<DecodeRun>(work_, *outcome.first_kept, *outcome.settings, options_.seed));
    if (options_.pairs) runs.back()->note_pairs();
    if (runs.back()->prompt() != nullptr) consumers.push_back(runs.back()->prompt());
  }
  run_consumers(work_, consumers);
  for (const auto& run : runs) run->start();
}

/// The full cache at some steps, for comparison only: policies see nothing of it.
void DecodeReplay::read_block(int64_t first, int64_t steps, const Table<float>& importance,
                              DecodeBlock& block) const {
  const TraceInfo& info = work_.info();
  block.first_step = first;
  block.steps = steps;
  block.importance = &importance;
  block.count_query = options_.scope == Scope::all;
  block.leave_out_guarded = options_.scope == Scope::evictable;
  block.total = ShareSums::of(work_.query_heads(), steps);
  block.parts = &options_.parts;
  block.part_total.assign(options_.parts.size(), block.total.importance);
  AttentionRequest request;
  for (int64_t s = 0; s < steps; ++s) request.rows.push_back(info.first_step() + first + s);
  request.columns = info.query_position[request.rows.back()] + 1;
  request.outputs = true;
  request.logits = std::ranges::any_of(outcomes_, &ReplayOutcome::merging);
  block.heads.resize(work_.kv_heads());
  for (int kv = 0; kv < work_.kv_heads(); ++kv) {
    request.kv_head = kv;
    work_.backend().attention(work_.trace(), request, block.heads[kv]);
  }
  parallel_for(work_.query_heads(), [&](int64_t h) {
    const auto head = static_cast<int>(h);
    for (int64_t s = 0; s < steps; ++s) {
      const float* row = block.attention(head, s);
      const int64_t before = block.heads.front().positions[s] + (block.count_query ? 1 : 0);
      const auto a = Floats(row, before).cast<double>();
      const Eigen::ArrayXd gain = a * Floats(importance.row(head).data(), before).cast<double>();
      block.total.attention(h, s) = a.sum();
      block.total.importance(h, s) = gain.sum();
      block.total.squares(h, s) = gain.square().sum();
      for (size_t part = 0; part < block.part_total.size(); ++part)
        for (const Range range : options_.parts[part])
          for (int64_t i = range.begin; i < range.end; ++i)
            block.part_total[part](h, s) += static_cast<double>(row[i]) *
                                            static_cast<double>(importance(h, i));
    }
  });
}

void DecodeReplay::run(const std::function<void(const StepBlock&)>& sink) {
  if (outcomes_.empty()) return;
  const TraceInfo& info = work_.info();
  const int64_t heads = work_.query_heads();
  Table<float> made_here;
  if (options_.importance == nullptr) made_here = norms_of_all(work_, options_.norm);
  const Table<float>& importance = options_.importance ? *options_.importance : made_here;
  std::vector<std::unique_ptr<DecodeRun>> runs;
  start_runs(runs);
  for (size_t r = 0; r < runs.size(); ++r) {  // what the prompt's compression left
    std::shared_ptr<const KeptSets>& first = outcomes_[r].first_kept;
    if (outcomes_[r].merging) first = kept_after(runs[r]->owners(), *first, work_.entries());
  }
  const int64_t most = std::clamp<int64_t>(kBlockValues / (heads * info.total_len), 1, kMostSteps);
  DecodeBlock full;  // its memory serves every block
  for (int64_t first = 0; first < info.steps(); first += most) {
    const int64_t steps = std::min(most, info.steps() - first);
    read_block(first, steps, importance, full);
    std::vector<DecodeSeries> series(
        runs.size(), DecodeSeries(heads, steps, work_.value_dim(), options_.parts.size()));
    for (DecodeSeries& one : series) one.merges = MergeTally(heads, steps, options_.slot_changes);
    const auto advance = [&](size_t r) { runs[r]->run(full, series[r]); };
    // Threads share runs if there are enough of them, else the heads of each.
    if (static_cast<int>(runs.size()) >= threads())
      parallel_for(std::ssize(runs), [&](int64_t r) { advance(r); });
    else
      for (size_t r = 0; r < runs.size(); ++r) advance(r);
    std::vector<RetainedSums> sums(runs.size());
    StepBlock block{full.first_step, full.steps, nullptr, {}};
    for (size_t r = 0; r < runs.size(); ++r) {
      OutcomeBlock& view = block.outcomes.emplace_back();
      view.outcome = static_cast<int>(r);
      view.delta = series[r].delta.data();
      if (outcomes_[r].merging) view.merges = &series[r].merges;
      if (!outcomes_[r].shares_defined) continue;
      sums[r] = sums_of(full, series[r]);
      view.sums = &sums[r];
    }
    sink(block);
  }
  for (size_t r = 0; r < runs.size(); ++r) {
    ReplayOutcome& outcome = outcomes_[r];
    outcome.kept = kept_after(runs[r]->owners(), *outcome.first_kept, work_.entries());
    outcome.merge_count = merged_slots(runs[r]->owners());
    outcome.undefined_scales = runs[r]->undefined_scales();
    outcome.most_slots = runs[r]->most_slots();
    outcome.scales = runs[r]->scales();
    outcome.pairs = runs[r]->pairs();
  }
}

RetainedSums DecodeReplay::sums_of(const DecodeBlock& full, const DecodeSeries& series) const {
  const bool leave_out = options_.scope == Scope::evictable;
  const auto scoped = [&](const ShareSums& all) {
    return leave_out ? difference(all, series.guarded) : all;
  };
  RetainedSums sums;
  sums.kept = scoped(series.kept);
  sums.total = scoped(full.total);
  sums.part_kept = over_heads(series.part_kept, series.part_guarded, leave_out);
  sums.part_total = over_heads(full.part_total, series.part_guarded, leave_out);
  for (int64_t s = 0; s < full.steps; ++s) {
    const int64_t before = full.heads.front().positions[s] + (full.count_query ? 1 : 0);
    sums.entries.push_back(static_cast<double>(before * work_.query_heads()));
    for (int64_t h = 0; leave_out && h < work_.query_heads(); ++h)
      sums.entries.back() -= series.guarded_entries(h, s);
  }
  return sums;
}

/// Attention and importance of the full cache on the slots present that are before the query.
void DecodeRun::compare(size_t owner, const DecodeBlock& block, int64_t step,
                        DecodeSeries& series) {
  const SlotCache& cache = owners_[owner];
  const std::span<const int64_t> present(cache.positions().data(),
                                         cache.size() - (block.count_query ? 0 : 1));
  std::vector<int64_t> guarded;
  for (size_t s = 0; block.leave_out_guarded && s < present.size(); ++s)
    if (is_protected(owner, static_cast<int64_t>(s))) guarded.push_back(present[s]);
  Entries kept(present, *block.parts), safe(guarded, *block.parts);
  for (int head = cache.first_head(); head < cache.first_head() + cache.heads(); ++head) {
    for (Entries* const entries : {&kept, &safe})
      entries->add_up(block.attention(head, step), block.importance->row(head).data(),
                      scratch_[owner].gains);
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
    const double logit = scratch_[owner].logits(x, s) + votes.log_weight(cache, s, x);
    sums.add_slot(all.attention, scratch_[owner].attention(x, s), logit - all.log_mass);
    if (tally.wants_changes())
      sums.add_change(
          change_by_slot(work_, head, work_.info().first_step() + block.first_step + step, full,
                         cache.members(s), all.attention, all.log_mass, logit - all.log_mass,
                         cache.value(s), block.z(head, step, cache.value_dim()), value_of));
  }
  tally.add(head, step, sums);
}

}  // namespace kvsim
