// Regret against choices with hindsight (metrics.md 7), which are replayed beside the policies.
#include "analysis/retained.hpp"
#include "analysis/summary.hpp"
#include "run/measures/conditions.hpp"
#include "run/measures/step_series.hpp"

namespace kvsim::measures::regret {
namespace {

constexpr const char* kBestStatic = "oracle-mean";
constexpr const char* kBestPerStep = "oracle-step";

const DeclareMeasure measure(
    {.name = "regret", .place = 502},
    {{"regret_mean", "policy budget layer", "1", "regret against the best static choice",
      "retained_importance_mean of oracle-mean minus the policy's", Beside{kBestStatic}},
     {"regret_step", "policy budget layer step", "1", "regret against the best choice of each step",
      "retained_importance of oracle-step minus the policy's", Beside{kBestPerStep}}});

class Regret : public Measure {
 public:
  using Measure::Measure;

  void start(const MeasuredLayer& layer) override {
    importance_ = StepSeries(layer.replay.count(), run().info.steps());
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums == nullptr) return;
    retained_pooled(view.sums->kept_importance, view.sums->total_importance,
                    importance_.part(view.outcome, block.first_step, block.steps));
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    std::map<int, size_t> best_static, best_per_step;  // outcomes by budget
    if (results.has("regret_mean")) best_static = layer.outcomes_of(best_static_);
    if (results.has("regret_step")) best_per_step = layer.outcomes_of(best_per_step_);
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index};
      if (results.has("regret_mean")) {
        const size_t best = best_static.at(cell.budget);
        results.set("regret_mean", at, mean(importance_[best]) - mean(importance_[o]));
      }
      if (!results.has("regret_step")) return;
      std::vector<double> regret = importance_[best_per_step.at(cell.budget)];
      for (size_t t = 0; t < regret.size(); ++t) regret[t] -= importance_[o][t];
      results.copy("regret_step", at, regret);
    });
  }

 private:
  const Record best_static_ = Record::parse(kBestStatic);
  const Record best_per_step_ = Record::parse(kBestPerStep);
  StepSeries importance_;  ///< retained, of every outcome
};
const RegisterMeasure<Regret> registered(measure);

}  // namespace
}  // namespace kvsim::measures::regret
