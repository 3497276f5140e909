// KeepKV's bounds on what merged pairs change, by delay (metrics.md 3).
#include "analysis/merge_bound.hpp"

#include <algorithm>

#include "run/measures/conditions.hpp"

namespace kvsim::measures::merge_bound {
namespace {

VariableValues bounds(const RunShape& /*run*/) {
  std::vector<std::string> names;
  for (const MergeBound& bound : merge_bounds()) names.push_back(bound.name);
  return names;
}
VariableValues delays(const RunShape& /*run*/) { return bound_delays(); }

constexpr const char* kBound = "policy budget layer bound delay";
const DeclareMeasure measure(
    {.name = "bound", .place = 580, .whole = true},
    {{"bound", "bound", "1", "bound of what a merged pair changes",
      "`paper`: KeepKV Theorem 5 as printed; `scale`: with the factor of Eq. 7; `bias`: for "
      "`keepkv-bias`",
      VariableType::text, Known{bounds}},
     {"delay", "delay", "1", "steps since the merge",
      "position of the query minus that of the newest one when the pair was merged",
      VariableType::int64, Known{delays}},
     {"bound_pairs", kBound, "count", "merged pairs that were looked at",
      "slots of exactly two entries whose query at that delay is stored; by KV head at the mean "
      "query of its heads. NaN where the bound is not about the policy's merge"},
     {"bound_share_applicable", kBound, "1", "share of pairs that the bound applies to",
      "share with epsilon < 1"},
     {"bound_share_violated", kBound, "1", "share of pairs beyond the bound",
      "of the applicable ones, with Theta > bound + 1e-5 gamma"},
     {"bound_median_ratio", kBound, "1", "perturbation by bound",
      "median of Theta / bound over the applicable ones whose bound is above 0"},
     {"bound_median", kBound, "model units", "bound of the perturbation",
      "median over the applicable ones"},
     {"bound_perturbation", kBound, "model units", "measured perturbation",
      "median of Theta = ‖o' - o‖ over all pairs, before W_O"}});

/// Bounds that are about the merge of a record, where its slots are read by that many heads.
std::vector<std::string> bounds_of(const Settings& settings, int heads) {
  return chosen<Merge>(settings).bounds(heads);
}

class MergeBounds : public Measure {
 public:
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.pairs = true}; }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    for (size_t o = 0; o < layer.replay.count(); ++o) {
      const ReplayOutcome& outcome = layer.replay.outcome(o);
      if (outcome.pairs.empty()) continue;
      const int heads = outcome.pairs.front().heads;
      if (bounds_of(*outcome.settings, heads).empty()) continue;
      const auto samples = bound_samples(layer.work, outcome.pairs);
      for (const ReplayCell cell : outcome.cells)
        if (cell.record < static_cast<int>(layer.shown))
          write(cell, layer.index, heads, samples, results);
    }
  }

 private:
  void write(ReplayCell cell, int64_t layer, int heads,
             const std::vector<std::vector<BoundSample>>& samples, MeasureResults& results) const {
    const auto names = bounds_of(run().options.records[static_cast<size_t>(cell.record)].settings,
                                 heads);
    for (size_t k = 0; k < merge_bounds().size(); ++k) {
      if (std::ranges::find(names, merge_bounds()[k].name) == names.end()) continue;
      for (size_t d = 0; d < samples.size(); ++d) {
        const BoundSummary summary = summarize(merge_bounds()[k], samples[d]);
        const std::initializer_list<int64_t> at = {
            cell.record, cell.budget, layer, static_cast<int64_t>(k), static_cast<int64_t>(d)};
        results.set("bound_pairs", at, static_cast<double>(summary.pairs));
        results.set("bound_share_applicable", at, summary.applicable);
        results.set("bound_share_violated", at, summary.violated);
        results.set("bound_median_ratio", at, summary.ratio);
        results.set("bound_median", at, summary.bound);
        results.set("bound_perturbation", at, summary.perturbation);
      }
    }
  }
};
const RegisterMeasure<MergeBounds> registered(measure);

}  // namespace
}  // namespace kvsim::measures::merge_bound
