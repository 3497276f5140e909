#include "sim/replay/decode.hpp"

#include <Eigen/Core>

#include "sim/core/numbers.hpp"
#include "sim/replay/decode_run.hpp"
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

}  // namespace

DecodeReplay::DecodeReplay(LayerWork& work, const LayerKept& kept,
                           const std::vector<Record>& records, const PrefillOptions& options)
    : work_(work), options_(options), outcomes_(outcome_of_each(kept, records)) {
  for (ReplayOutcome& outcome : outcomes_) outcome.changed = true;
}

/// Prompt statistics of all runs share passes over the attention, then every run compresses.
std::vector<std::unique_ptr<DecodeRun>> DecodeReplay::start_runs() {
  std::vector<std::unique_ptr<DecodeRun>> runs;
  std::vector<RowConsumer*> consumers;
  for (const ReplayOutcome& outcome : outcomes_) {
    runs.push_back(std::make_unique<DecodeRun>(work_, *outcome.first_kept, *outcome.settings,
                                               options_.seed, options_.pairs));
    if (runs.back()->prompt() != nullptr) consumers.push_back(runs.back()->prompt());
  }
  run_consumers(work_, consumers);
  for (const auto& run : runs) run->start();
  return runs;
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
  const std::vector<std::unique_ptr<DecodeRun>> runs = start_runs();
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

}  // namespace kvsim
