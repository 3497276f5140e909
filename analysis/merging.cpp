// Effect of merging on the attention (metrics.md 3).
#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim::measures::merging {
namespace {

const DeclareMeasure measure(
    {.name = "merging", .place = 420, .when = &kMerges},
    {{"represented_importance", kOverSteps, "1", "importance of kept and merged entries",
      "retained_importance with the entries counted in that are part of another's slot"},
     {"attention_sag", kOverSteps, "1", "attention sag",
      "sum over merged slots of (attention of their entries in the full cache - attention of the "
      "slot), mean over query heads; positive: the slots lost attention; 0 without merged slots"},
     {"attention_shift", kOverSteps, "1", "attention shift",
      "the same with absolute values of the brackets"},
     {"dropped_attention", kOverSteps, "1", "attention on dropped entries",
      "attention of the full cache on entries that no slot holds, mean over query heads"},
     {"log_mass_defect", kOverSteps, "nat", "log-mass defect",
      "log-weight + logit of a merged slot - log-sum-exp of its entries' logits, mean over heads "
      "and merged slots; NaN without any"},
     {"log_mass_defect_p01", kOverLayers, "nat", "log-mass defect, percentile 1",
      "percentile 1 over heads, merged slots and steps"},
     {"log_mass_defect_p99", kOverLayers, "nat", "log-mass defect, percentile 99",
      "percentile 99 over heads, merged slots and steps"},
     {"merge_count", kOverLayers, "count", "merged slots",
      "slots that hold two or more entries, after the last compression"},
     {"zip_undefined", kOverLayers, "count", "merges with an undefined scale",
      "merges at which KeepKV Eq. 7 divides by nothing; its scale is 1 there"},
     {"zip_scale_p01", kOverLayers, "1", "scale of a merged key, percentile 1",
      "percentile 1 of f in KeepKV Eq. 7; NaN for other merges"},
     {"zip_scale_p99", kOverLayers, "1", "scale of a merged key, percentile 99",
      "percentile 99 of f in KeepKV Eq. 7; NaN for other merges"}});

struct Merging : Measure {
  using Measure::Measure;

  void start(const MeasuredLayer& layer) override {
    represented_ = dropped_ = sag_ = shift_ = defect_ = StepSeries(layer.replay.count(),
                                                                   run().info.steps());
    defects_.assign(layer.replay.count(), {});
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums != nullptr) see_shares(block, view);  // undefined: positions=cache
    const auto o = static_cast<size_t>(view.outcome);
    for (int64_t s = 0; s < block.steps; ++s) {
      const int64_t t = block.first_step + s;
      sag_[o][t] = view.merges != nullptr ? view.merges->mean(&MergeSums::sag, s) : 0;
      shift_[o][t] = view.merges != nullptr ? view.merges->mean(&MergeSums::shift, s) : 0;
      if (view.merges != nullptr) defect_[o][t] = view.merges->slot_mean(&MergeSums::defect, s);
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
    const std::vector<double> kept = over_heads(view.sums->kept.importance);
    const std::vector<double> importance = over_heads(view.sums->total.importance);
    const std::vector<double> present = over_heads(view.sums->kept.attention);
    const std::vector<double> attention = over_heads(view.sums->total.attention);
    const auto of_members = [&](double MergeSums::*part, int64_t s) {
      return view.merges != nullptr ? view.merges->sum(part, s) : 0;
    };
    for (int64_t s = 0; s < block.steps; ++s) {
      const int64_t t = block.first_step + s;
      const double held = kept[s] + of_members(&MergeSums::importance, s);
      const double lost = attention[s] - present[s] - of_members(&MergeSums::attention, s);
      represented_[view.outcome][t] = retained_share(held, importance[s]);
      dropped_[view.outcome][t] = std::max(0.0, lost) / run().info.num_query_heads;
    }
  }

  StepSeries represented_, dropped_, sag_, shift_, defect_;
  std::vector<std::vector<double>> defects_;  ///< [outcome] of every head, merged slot and step
};
const RegisterMeasure<Merging> registered(measure);

}  // namespace
}  // namespace kvsim::measures::merging

namespace kvsim::measures::slot_changes {
namespace {

const DeclareMeasure measure(
    {.name = "slot_changes", .place = 570},
    {{"value_part", kOverSteps, "model units", "change by a merged slot's value",
      "‖a' (v^ - v_M)‖: a' attention on the slot alone in the place of its entries in the full "
      "cache, v^ its value, v_M its entries' mean by exp(logit); before W_O, mean over heads and "
      "merged slots; NaN without any"},
     {"mass_part", kOverSteps, "model units", "change by a merged slot's mass",
      "‖(a' - a)(v_M - v_rest)‖: a attention on the slot's entries, v_rest the mean value of "
      "everything else (a sink counts as value 0); otherwise as value_part"}});

struct SlotChanges : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.slot_changes = true}; }
  void start(const MeasuredLayer& layer) override {
    value_ = mass_ = StepSeries(layer.replay.count(), run().info.steps());
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.merges == nullptr) return;
    const auto values = value_.part(view.outcome, block.first_step, block.steps);
    const auto masses = mass_.part(view.outcome, block.first_step, block.steps);
    for (int64_t s = 0; s < block.steps; ++s) {
      values[s] = view.merges->slot_mean(&MergeSums::value_part, s);
      masses[s] = view.merges->slot_mean(&MergeSums::mass_part, s);
    }
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      results.copy("value_part", {cell.record, cell.budget, layer.index}, value_[o]);
      results.copy("mass_part", {cell.record, cell.budget, layer.index}, mass_[o]);
    });
  }

 private:
  StepSeries value_, mass_;
};
const RegisterMeasure<SlotChanges> registered(measure);

}  // namespace
}  // namespace kvsim::measures::slot_changes

namespace kvsim::measures::quantization_error {
namespace {

const DeclareMeasure measure(
    {.name = "quantization_error", .place = 410, .when = &kAlways},
    {{"quantization_error", "policy budget layer step", "1",
      "quantisation's part of the output error",
      "‖sum over heads of (z^ - z^ without quantising) W‖ / ‖sum over heads of z W‖: what is added "
      "to the error of the same slots unrounded; NaN for policies that do not quantise",
      Needs{&kQuantizes}},
     {"quantization_error_mean", "policy budget layer", "1", "mean quantisation error",
      "mean over the evaluated steps", Needs{&kQuantizes}}});

struct QuantizationError : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.rounding_norms = true}; }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const Record& record = run().options.records[cell.record];
      if (!quantizer(record.settings).changes_entries()) return;
      std::vector<double> relative(layer.norms.rounding(o).size());
      relative_errors(layer.norms.rounding(o), layer.norms.full(), relative);
      results.copy("quantization_error", {cell.record, cell.budget, layer.index}, relative);
      results.set("quantization_error_mean", {cell.record, cell.budget, layer.index},
                  mean(relative));
    });
  }
};
const RegisterMeasure<QuantizationError> registered(measure);

}  // namespace
}  // namespace kvsim::measures::quantization_error
