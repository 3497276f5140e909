// Upper bound of the worst retained importance of any static choice (metrics.md 7).
#include <algorithm>

#include "analysis/regret.hpp"
#include "run/measures/conditions.hpp"
#include "run/measures/step_series.hpp"

namespace kvsim::measures::minmax_bound {
namespace {

const DeclareMeasure measure(
    {.name = "minmax_bound", .place = 503},
    {{"minmax_bound", "policy budget layer", "1", "upper bound of the worst retained importance",
      "no static choice of B entries per head is better than this at its worst "
      "step; NaN for `periodic` and `decode`, which do not choose once"}});

/// The bound belongs to a budget and to who owns a set (KV heads or query heads), not to a policy.
/// It is about static sets of the prompt: what periodic or decoding records keep has none.
class MinmaxBound : public Measure {
 public:
  using Measure::Measure;

  void start(const MeasuredLayer& /*layer*/) override {
    total_.clear();
    later_share_.clear();
  }
  void see_full(const ReplayBlock& block) override {
    const std::vector<double> prompt = over_heads(block.prompt_importance);
    const std::vector<double> later = over_heads(block.later_importance);
    for (size_t s = 0; s < prompt.size(); ++s) {
      const double counted = run().options.scope == Scope::all ? later[s] : 0.0;
      total_.push_back(prompt[s] + counted);
      later_share_.push_back(counted == 0 ? 0.0 : counted / total_.back());
    }
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const Table<float>& importance = layer.replay.prefill().importance();
    for (const bool per_query_head : {false, true}) {
      const std::vector<ReplayCell> cells = static_cells(layer, per_query_head);
      if (cells.empty()) continue;
      const ImportanceGains gains = importance_gains(layer.work, importance.data(),
                                                     importance.columns(), total_, later_share_,
                                                     per_query_head);
      const std::vector<Budget>& budgets = run().options.budgets;
      for (size_t b = 0; b < budgets.size(); ++b) {
        const double bound = kvsim::minmax_bound(gains, budgets[b].entries(layer.work.entries()));
        for (const ReplayCell cell : cells)
          if (cell.budget == static_cast<int>(b))
            results.set("minmax_bound", {cell.record, cell.budget, layer.index}, bound);
      }
    }
  }

 private:
  static std::vector<ReplayCell> static_cells(const MeasuredLayer& layer, bool per_query_head) {
    std::vector<ReplayCell> cells;
    for (const ReplayOutcome& outcome : layer.replay.prefill().outcomes()) {
      if (outcome.kept->per_query_head != per_query_head || !outcome.shares_defined) continue;
      std::ranges::copy_if(outcome.cells, std::back_inserter(cells), [&](ReplayCell cell) {
        return cell.record < static_cast<int>(layer.shown);
      });
    }
    return cells;
  }

  std::vector<double> total_;        ///< [T] importance of all entries in the scope prompt or all
  std::vector<double> later_share_;  ///< [T] share of it on later entries; 0 in scope prompt
};
const RegisterMeasure<MinmaxBound> registered(measure);

}  // namespace
}  // namespace kvsim::measures::minmax_bound
