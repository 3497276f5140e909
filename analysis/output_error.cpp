#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {

double relative_error(double error, double reference) {
  if (reference != 0) return error / reference;
  return error == 0 ? 0.0 : kUndefined;
}

void relative_errors(std::span<const double> error, std::span<const double> reference,
                     std::span<double> out) {
  for (size_t s = 0; s < out.size(); ++s) out[s] = relative_error(error[s], reference[s]);
}

int64_t undefined_errors(std::span<const double> error, std::span<const double> reference) {
  int64_t count = 0;
  for (size_t s = 0; s < error.size(); ++s) count += error[s] > 0 && reference[s] == 0;
  return count;
}

std::vector<int64_t> evaluated_steps(int64_t steps, int64_t count) {
  if (count == 0) count = steps;
  std::vector<int64_t> chosen(std::min(count, steps));
  for (int64_t k = 0; k < std::ssize(chosen); ++k) chosen[k] = k * steps / std::min(count, steps);
  return chosen;
}

}  // namespace kvsim

namespace kvsim::measures::output_error {
namespace {

const DeclareMeasure measure(
    {.name = "output_error", .place = 200},
    {{"output_error", kOverSteps, "1", "relative error of the layer's output",
      "‖sum over heads of (z^ - z) W‖ / ‖sum over heads of z W‖; NaN at steps that --wo-steps "
      "leaves out",
      When{&kAlways}},
     {"output_error_mean", kOverLayers, "1", "mean output error", "mean over the evaluated steps",
      When{&kAlways}},
     {"output_error_max", kOverLayers, "1", "worst output error",
      "maximum over the evaluated steps", When{&kAlways}},
     {"output_error_p99", kOverLayers, "1", "output error, percentile 99",
      "percentile 99 over the evaluated steps", When{&kAlways}},
     {"output_error_undefined", kOverLayers, "count", "steps with undefined output error",
      "evaluated steps with an error although the full cache's output is 0", When{&kAlways}},
     {"residual_error", kOverSteps, "1", "error relative to the residual stream",
      "‖sum over heads of (z^ - z) W‖ / norm of the residual stream that enters the layer",
      Needs{&kResidualNorm}, When{&kAlways}},
     {"residual_error_mean", kOverLayers, "1", "mean residual error",
      "mean over the evaluated steps", Needs{&kResidualNorm}, When{&kAlways}},
     {"residual_error_max", kOverLayers, "1", "worst residual error",
      "maximum over the evaluated steps", Needs{&kResidualNorm}, When{&kAlways}},
     {"residual_error_p99", kOverLayers, "1", "residual error, percentile 99",
      "percentile 99 over the evaluated steps", Needs{&kResidualNorm}, When{&kAlways}},
     {"output_error_absolute", kOverSteps, "model units", "error of the layer's output",
      "the numerator of output_error"},
     {"output_error_head", "policy budget layer head step", "1",
      "relative error of a head's output", "‖(z^ - z) W‖ / ‖z W‖ of one head, every step",
      Needs{&kPerHead}, When{&kAlways}}});

struct OutputError : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.head_norms = run().options.per_head}; }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index};
      const std::vector<double>& error = layer.norms.error(o);
      const std::vector<double>& full = layer.norms.full();
      std::vector<double> relative(error.size());
      relative_errors(error, full, relative);
      results.copy("output_error", at, relative);
      results.copy("output_error_absolute", at, error);
      results.set("output_error_mean", at, mean(relative));
      results.set("output_error_max", at, maximum(relative));
      results.set("output_error_p99", at, percentile(relative, 99));
      results.set("output_error_undefined", at, static_cast<double>(undefined_errors(error, full)));
      if (results.has("residual_error")) write_residual(layer, at, error, results);
      if (run().options.per_head) write_heads(layer, cell, o, results);
    });
  }

 private:
  void write_residual(const MeasuredLayer& layer, std::initializer_list<int64_t> at,
                      const std::vector<double>& error, MeasureResults& results) const {
    std::vector<double> relative(error.size());
    relative_errors(error, layer.stream_norms(), relative);
    results.copy("residual_error", at, relative);
    results.set("residual_error_mean", at, mean(relative));
    results.set("residual_error_max", at, maximum(relative));
    results.set("residual_error_p99", at, percentile(relative, 99));
  }
  void write_heads(const MeasuredLayer& layer, ReplayCell cell, size_t outcome,
                   MeasureResults& results) const {
    const Table<double>& error = layer.norms.error_heads(outcome);
    std::vector<double> relative(error.columns());
    for (int64_t h = 0; h < error.rows(); ++h) {
      relative_errors(error.row(h), layer.norms.full_heads().row(h), relative);
      results.copy("output_error_head", {cell.record, cell.budget, layer.index, h}, relative);
    }
  }
};
const RegisterMeasure<OutputError> registered(measure);

}  // namespace
}  // namespace kvsim::measures::output_error
