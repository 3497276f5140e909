// Effect of merging on the attention (metrics.md 3).
#include <algorithm>

#include "analysis/measure.hpp"
#include "analysis/retained.hpp"
#include "analysis/summary.hpp"

namespace kvsim::measures::merging {
namespace {

constexpr const char* kStep = "policy budget layer step";
constexpr const char* kLayer = "policy budget layer";
const DeclareMeasure measure(
    {.name = "merging", .place = 420, .when = &kMerges},
    {{"represented_importance", kStep, "1", "importance of kept and merged entries",
      "retained_importance with the entries counted in that are part of another's slot"},
     {"attention_sag", kStep, "1", "attention sag",
      "sum over merged slots of (attention of their entries in the full cache - attention of the "
      "slot), mean over query heads; positive: the slots lost attention; 0 without merged slots"},
     {"attention_shift", kStep, "1", "attention shift",
      "the same with absolute values of the brackets"},
     {"dropped_attention", kStep, "1", "attention on dropped entries",
      "attention of the full cache on entries that no slot holds, mean over query heads"},
     {"log_mass_defect", kStep, "nat", "log-mass defect",
      "log-weight + logit of a merged slot - log-sum-exp of its entries' logits, mean over heads "
      "and merged slots; NaN without any"},
     {"log_mass_defect_p01", kLayer, "nat", "log-mass defect, percentile 1",
      "percentile 1 over heads, merged slots and steps"},
     {"log_mass_defect_p99", kLayer, "nat", "log-mass defect, percentile 99",
      "percentile 99 over heads, merged slots and steps"},
     {"merge_count", kLayer, "count", "merged slots",
      "slots that hold two or more entries, after the last compression"},
     {"zip_undefined", kLayer, "count", "merges with an undefined scale",
      "merges at which KeepKV Eq. 7 divides by nothing; its scale is 1 there"},
     {"zip_scale_p01", kLayer, "1", "scale of a merged key, percentile 1",
      "percentile 1 of f in KeepKV Eq. 7; NaN for other merges"},
     {"zip_scale_p99", kLayer, "1", "scale of a merged key, percentile 99",
      "percentile 99 of f in KeepKV Eq. 7; NaN for other merges"}});

class Merging : public Measure {
 public:
  using Measure::Measure;

  void start(const MeasuredLayer& layer) override {
    represented_ = dropped_ = sag_ = shift_ = defect_ = StepSeries(layer.replay.count(),
                                                                   run().info.steps());
    defects_.assign(layer.replay.count(), {});
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums != nullptr) see_shares(block, view);  // undefined: positions=cache
    const auto o = static_cast<size_t>(view.outcome);
    const auto first = static_cast<size_t>(block.first_step);
    for (int64_t s = 0; s < block.steps; ++s) {
      const size_t t = first + static_cast<size_t>(s);
      sag_[o][t] = view.merges != nullptr ? view.merges->sag(s) : 0;
      shift_[o][t] = view.merges != nullptr ? view.merges->shift(s) : 0;
      if (view.merges != nullptr) defect_[o][t] = view.merges->defect(s);
    }
    if (view.merges == nullptr) return;
    const std::vector<double> all = view.merges->defects();
    defects_[o].insert(defects_[o].end(), all.begin(), all.end());
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index};
      const ReplayOutcome& outcome = layer.replay.outcome(o);
      results.copy("represented_importance", at, represented_[o]);
      results.copy("dropped_attention", at, dropped_[o]);
      results.copy("attention_sag", at, sag_[o]);
      results.copy("attention_shift", at, shift_[o]);
      results.copy("log_mass_defect", at, defect_[o]);
      results.set("log_mass_defect_p01", at, percentile(defects_[o], 1));
      results.set("log_mass_defect_p99", at, percentile(defects_[o], 99));
      results.set("merge_count", at, static_cast<double>(outcome.merge_count));
      results.set("zip_undefined", at, static_cast<double>(outcome.undefined_scales));
      results.set("zip_scale_p01", at, percentile(outcome.scales, 1));
      results.set("zip_scale_p99", at, percentile(outcome.scales, 99));
    });
  }

 private:
  void see_shares(const StepBlock& block, const OutcomeBlock& view) {
    const auto o = static_cast<size_t>(view.outcome);
    std::vector<double> held = over_heads(view.sums->kept_importance);
    const std::vector<double> importance = over_heads(view.sums->total_importance);
    const std::vector<double> present = over_heads(view.sums->kept_attention);
    const std::vector<double> attention = over_heads(view.sums->total_attention);
    std::vector<double> of_members(held.size(), 0.0);
    if (view.merges != nullptr) {
      of_members = over_heads(view.merges->member_attention());
      const std::vector<double> gain = over_heads(view.merges->member_importance());
      for (size_t s = 0; s < held.size(); ++s) held[s] += gain[s];
    }
    for (size_t s = 0; s < held.size(); ++s) {
      const size_t t = static_cast<size_t>(block.first_step) + s;
      represented_[o][t] = retained_share(held[s], importance[s]);
      dropped_[o][t] = std::max(0.0, attention[s] - present[s] - of_members[s]) /
                       static_cast<double>(run().info.num_query_heads);
    }
  }

  StepSeries represented_, dropped_, sag_, shift_, defect_;
  std::vector<std::vector<double>> defects_;  ///< [outcome] of every head, merged slot and step
};
const RegisterMeasure<Merging> registered(measure);

}  // namespace
}  // namespace kvsim::measures::merging
