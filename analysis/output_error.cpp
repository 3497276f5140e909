// Errors of outputs, and of the stream that they are added to (metrics.md 2).
#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {

double relative_error(double error, double reference) {
  if (reference != 0) return error / reference;
  return error == 0 ? 0.0 : kUndefined;
}

std::vector<double> relative_errors(std::span<const double> error,
                                    std::span<const double> reference) {
  std::vector<double> relative(error.size());
  std::ranges::transform(error, reference, relative.begin(), relative_error);
  return relative;
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

void StreamError::add_layer(std::span<const double> error) {
  if (squares_.empty()) squares_.assign(error.size(), 0.0);
  assert(squares_.size() == error.size());
  for (size_t t = 0; t < error.size(); ++t) squares_[t] += error[t] * error[t];
}

std::vector<double> StreamError::relative_to(std::span<const double> norm) const {
  std::vector<double> roots(squares_.size());
  for (size_t t = 0; t < roots.size(); ++t) roots[t] = std::sqrt(squares_[t]);
  return relative_errors(roots, norm);
}

}  // namespace kvsim

namespace kvsim::measures::output_error {
namespace {

struct OutputError : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.head_norms = run().options.per_head}; }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index};
      const std::vector<double>& error = layer.norms.error(o);
      const std::vector<double>& full = layer.norms.full();
      const std::vector<double> relative = relative_errors(error, full);
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
    const std::vector<double> relative = relative_errors(error, layer.stream_norms());
    results.copy("residual_error", at, relative);
    results.set("residual_error_mean", at, mean(relative));
    results.set("residual_error_max", at, maximum(relative));
    results.set("residual_error_p99", at, percentile(relative, 99));
  }
  void write_heads(const MeasuredLayer& layer, ReplayCell cell, size_t outcome,
                   MeasureResults& results) const {
    const Table<double>& error = layer.norms.error_heads(outcome);
    for (int64_t h = 0; h < error.rows(); ++h)
      results.copy("output_error_head", {cell.record, cell.budget, layer.index, h},
                   relative_errors(error.row(h), layer.norms.full_heads().row(h)));
  }
};
const RegisterMeasure<OutputError> register_output_error(
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

struct StreamErrorMeasure : Measure {
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& /*results*/) override {
    layer.for_each_cell(
        [&](ReplayCell cell, size_t o) { sums_[cell].add_layer(layer.norms.error(o)); });
    last_norm_ = layer.stream_norms();
  }
  void finish_run(MeasureResults& results) override {
    for (const auto& [cell, sum] : sums_) {
      const std::vector<double> relative = sum.relative_to(last_norm_);
      results.copy("stream_error", {cell.record, cell.budget}, relative);
      results.set("stream_error_rms", {cell.record, cell.budget}, root_mean_square(relative));
    }
  }

 private:
  std::map<ReplayCell, StreamError> sums_;
  std::vector<double> last_norm_;  ///< residual stream [T] entering the last layer so far
};
const RegisterMeasure<StreamErrorMeasure> register_stream_error_measure(
    {.name = "stream_error", .place = 210, .when = &kAlways},
    {{"stream_error", "policy budget step", "1", "stream error, all layers together",
      "root of the summed squares of the layers' ‖sum over heads of (z^ - z) W‖ / norm of the "
      "residual stream that enters the last layer; over the layers of the run, and the attribute "
      "stream_error_note says so when these are not all of the model's (num_layers)",
      Needs{&kResidualNorm}},
     {"stream_error_rms", "policy budget", "1", "stream error, over steps",
      "root mean square over the evaluated steps; among the best predictors of the loss of a model "
      "that runs with the kept sets (studies/prediction.md)",
      Needs{&kResidualNorm}}});

/// Of one policy at one budget. A layer's error waits for the norm that enters the next.
struct Perturbation {
  StreamError sum;
  std::vector<double> waiting;  ///< error [T] of the layer before; empty: there is none

  /// `scale` [T]: what the error that waits is relative to.
  void settle(std::span<const double> scale) {
    if (!waiting.empty()) sum.add_layer(relative_errors(waiting, scale));
  }
};

struct StreamPerturbationMeasure : Measure {
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& /*results*/) override {
    std::vector<double> norm = layer.stream_norms(), scale = norm;
    if (!norm_.empty())
      for (size_t t = 0; t < scale.size(); ++t) scale[t] = std::sqrt(norm_[t] * scale[t]);
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      Perturbation& one = cells_[cell];
      one.settle(scale);
      one.waiting = layer.norms.error(o);
    });
    norm_ = std::move(norm);
  }
  void finish_run(MeasureResults& results) override {
    for (auto& [cell, one] : cells_) {
      one.settle(norm_);
      const std::vector<double> found = one.sum.relative_to(std::vector(norm_.size(), 1.0));
      results.copy("stream_perturbation", {cell.record, cell.budget}, found);
      results.set("stream_perturbation_rms", {cell.record, cell.budget}, root_mean_square(found));
    }
  }

 private:
  std::map<ReplayCell, Perturbation> cells_;
  std::vector<double> norm_;  ///< residual stream [T] entering the last layer so far
};
const RegisterMeasure<StreamPerturbationMeasure> register_stream_perturbation_measure(
    {.name = "stream_perturbation", .place = 215, .whole = true},
    {{"stream_perturbation", "policy budget step", "1",
      "stream error against what it is added to, all layers together",
      "root of the summed squares of the layers' ‖sum over heads of (z^ - z) W‖ / geometric mean "
      "of the norms of the residual stream that enters the layer and the next layer of the run; "
      "the last layer's: the norm that enters it",
      Needs{&kResidualNorm}},
     {"stream_perturbation_rms", "policy budget", "1",
      "stream error against what it is added to, over steps",
      "root mean square over the evaluated steps", Needs{&kResidualNorm}}});

}  // namespace
}  // namespace kvsim::measures::output_error
