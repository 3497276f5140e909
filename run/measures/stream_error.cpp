// What compression does to the residual stream, all layers together (studies/prediction.md).
#include "analysis/stream_error.hpp"

#include <map>

#include "analysis/summary.hpp"
#include "run/measures/conditions.hpp"

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

class StreamErrorMeasure : public Measure {
 public:
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
