// KeepKV's claim about single slots (metrics.md 3): do values or masses make the error?
#include "analysis/measure.hpp"

namespace kvsim::measures::slot_changes {
namespace {

constexpr const char* kStep = "policy budget layer step";
const DeclareMeasure measure(
    {.name = "slot_changes", .place = 570},
    {{"value_part", kStep, "model units", "change by a merged slot's value",
      "‖a' (v^ - v_M)‖: a' attention on the slot alone in the place of its entries in the full "
      "cache, v^ its value, v_M its entries' mean by exp(logit); before W_O, mean over heads and "
      "merged slots; NaN without any"},
     {"mass_part", kStep, "model units", "change by a merged slot's mass",
      "‖(a' - a)(v_M - v_rest)‖: a attention on the slot's entries, v_rest the mean value of "
      "everything else (a sink counts as value 0); otherwise as value_part"}});

class SlotChanges : public Measure {
 public:
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
      values[static_cast<size_t>(s)] = view.merges->value_part(s);
      masses[static_cast<size_t>(s)] = view.merges->mass_part(s);
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
