// Part of the output error that quantising adds.
#include "analysis/measure.hpp"
#include "analysis/output_error.hpp"
#include "analysis/summary.hpp"
#include "sim/stages/quantize/quantize.hpp"

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

class QuantizationError : public Measure {
 public:
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.rounding_norms = true}; }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const Record& record = run().options.records[static_cast<size_t>(cell.record)];
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
