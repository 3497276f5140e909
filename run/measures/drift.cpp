// How far the most important entries move while the window's queries pass (metrics.md 5.4).
#include "analysis/drift.hpp"

#include "run/measures/drift_rows.hpp"
#include "run/measures/measure.hpp"
#include "run/measures/prompt_parts.hpp"

namespace kvsim::measures::drift {
namespace {

const Decimal kBeta(2000);  // tokens, the paper's
constexpr const char* kDrift = "indicator budget layer head";

VariableValues indicators(const RunShape& /*run*/) { return DriftRows::indicators(); }
VariableValues rows_of_window(const RunShape& run) {
  return DriftRows(run.info, run.info.layers, {}, {}).positions();
}

const DeclareMeasure measure(
    {.name = "drift", .place = 550, .whole = true, .observes = DriftRows::records},
    {{"indicator", "indicator", "1", "what the rows of the window hold", "see `kvsim policies`",
      VariableType::text, Known{indicators}},
     {"row", "row", "1", "position of an observing query", "the window of `restkv`, n-32..n-1",
      VariableType::int64, Known{rows_of_window}},
     {"drift", kDrift, "tokens", "drift of the best entries",
      "mean position of the B - m best candidates, rear half of the window minus front half "
      "(ReST-KV Eq. 10)"},
     {"drift_width", kDrift, "count", "width of the adaptive window",
      "what follows from the drift with beta = 2000 and a least width of 5"},
     {"drift_shift", kDrift, "count", "shift of the adaptive window",
      "what follows from the drift with beta = 2000"},
     {"drift_position", "indicator budget layer head row", "1", "mean position of the best entries",
      "of one observing query; NaN if B <= m"},
     {"output_change_map", "layer row part", "model units",
      "output change over queries and positions",
      "indicator output-change, mean over query heads and the part's candidates"}});

class DriftMeasure : public Measure {
 public:
  explicit DriftMeasure(const MeasureRun& run)
      : Measure(run), rows_(run.info, run.options.layers, run.options.budgets,
                            measured_parts(run.info.prompt_len)) {}

  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const WindowDynamics seen = rows_.of_layer(layer.work);
    std::ranges::copy(seen.map.values(), results.row("output_change_map", {layer.index}).begin());
    for (size_t k = 0; k < seen.drift.size(); ++k)
      for (size_t b = 0; b < run().options.budgets.size(); ++b)
        for (int h = 0; h < layer.work.query_heads(); ++h) {
          const std::initializer_list<int64_t> at = {static_cast<int64_t>(k),
                                                     static_cast<int64_t>(b), layer.index, h};
          const PositionDrift drift = seen.drift[k].drift(b, h);
          results.set("drift", at, 0 - drift.value());  // positive: towards later tokens
          results.set("drift_width", at, static_cast<double>(adaptive_width(drift, kBeta)));
          results.set("drift_shift", at, static_cast<double>(adaptive_shift(drift, kBeta)));
          const auto positions = results.row("drift_position", at);
          for (size_t r = 0; r < positions.size(); ++r)
            positions[r] = seen.drift[k].mean_position(b, h, static_cast<int64_t>(r));
        }
  }

 private:
  DriftRows rows_;
};
const RegisterMeasure<DriftMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::drift
