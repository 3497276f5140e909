#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {

void StreamError::add_layer(std::span<const double> error) {
  if (squares_.empty()) squares_.assign(error.size(), 0.0);
  assert(squares_.size() == error.size());
  for (size_t t = 0; t < error.size(); ++t) squares_[t] += error[t] * error[t];
}

std::vector<double> StreamError::relative_to(std::span<const double> norm) const {
  std::vector<double> roots(squares_.size());
  for (size_t t = 0; t < roots.size(); ++t) roots[t] = std::sqrt(squares_[t]);
  std::vector<double> relative(roots.size());
  relative_errors(roots, norm, relative);
  return relative;
}

}  // namespace kvsim

namespace kvsim::measures::stream_error {
namespace {

const DeclareMeasure measure(
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
const RegisterMeasure<StreamErrorMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::stream_error

namespace kvsim::measures::stream_perturbation {
namespace {

const DeclareMeasure measure(
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

/// Of one policy at one budget. A layer's error waits for the norm that enters the next.
struct Perturbation {
  StreamError sum;
  std::vector<double> waiting;  ///< error [T] of the layer before; empty: there is none

  /// `scale` [T]: what the error that waits is relative to.
  void settle(std::span<const double> scale) {
    if (waiting.empty()) return;
    relative_errors(waiting, scale, waiting);
    sum.add_layer(waiting);
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
const RegisterMeasure<StreamPerturbationMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::stream_perturbation
