#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "analysis/dataset.hpp"
#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

const std::vector<std::string> kStreamRecords = {"streaming", "snapkv,window=8"};

SynthConfig small_layers(int count) {
  return {.prompt = 40,
          .steps = 6,
          .num_layers = count,
          .head_dim = 16,
          .value_dim = 16,
          .hidden = 24,
          .type = ElementType::float32};
}

/// A variable of both records at both budgets, 4 of 6 steps evaluated, and its root mean square.
/// `expected(p, b, step, row of the trace)`: in float64; NaN where it is not evaluated.
template <class Expected>
void check_cells(const TraceReader& trace, const Dataset& results, const std::string& name,
                 const Expected& expected) {
  for (int64_t p = 0; p < 2; ++p)
    for (int64_t b = 0; b < 2; ++b) {
      const auto found = results.row(name, {p, b});
      double squares = 0;
      int evaluated = 0;
      for (size_t t = 0; t < found.size(); ++t) {
        const double value = expected(p, b, t, static_cast<size_t>(trace.info().first_step()) + t);
        CHECK(std::isnan(found[t]) == std::isnan(value));
        if (std::isnan(value)) continue;
        CHECK(found[t] == Approx(value).margin(1e-12));
        squares += value * value;
        ++evaluated;
      }
      CHECK(evaluated == 4);
      const double rms = results.row(name + "_rms", {p, b})[0];
      CHECK(rms == Approx(std::sqrt(squares / evaluated)));
      CHECK((rms > 0) == (b == 0));
    }
}

}  // namespace

TEST_CASE("the stream's error adds layers in quadrature, relative to the last norm", "[analysis]") {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  StreamError error;
  error.add_layer(std::vector<double>{3, 0, kNaN, 1});
  error.add_layer(std::vector<double>{4, 0, kNaN, 0});
  const std::vector<double> found = error.relative_to(std::vector<double>{10, 0, 1, 0});
  CHECK(found[0] == Approx(0.5));  // sqrt(9 + 16) / 10
  CHECK(found[1] == 0);            // nothing of nothing
  CHECK(std::isnan(found[2]));     // not evaluated
  CHECK(std::isnan(found[3]));     // something of nothing
  CHECK(root_mean_square(std::vector<double>{3, kNaN, 4}) == Approx(std::sqrt(12.5)));
  CHECK(std::isnan(root_mean_square(std::vector<double>{kNaN})));
}

TEST_CASE("a study's stream error is that of its layers' residual errors", "[run]") {
  const SynthTrace trace(small_layers(3));
  REQUIRE(trace.info().has_residual_norm);
  StudyOptions options = options_for(kStreamRecords, {"0.3", "1.0"}, {0, 2});
  options.wo_steps = 4;
  const Dataset results = study_of(trace, options);
  CHECK(std::get<int64_t>(*results.attribute("num_layers")) == 3);
  CHECK(std::get<std::string>(*results.attribute("stream_error_note")) ==
        "Stream error is of 2 of the model's 3 layers.");
  const LayerTrace low = trace.read_layer(0), high = trace.read_layer(2);
  check_cells(trace, results, "stream_error", [&](int64_t p, int64_t b, size_t t, size_t row) {
    const double a = results.row("residual_error", {p, b, 0})[t] * low.residual_norm[row];
    const double c = results.row("residual_error", {p, b, 1})[t] * high.residual_norm[row];
    return std::hypot(a, c) / high.residual_norm[row];
  });
}

TEST_CASE("an error counts by the norms before and after its layer", "[run]") {
  const SynthTrace trace(small_layers(4));
  StudyOptions options = options_for(kStreamRecords, {"0.3", "1.0"},
                                     GENERATE(std::vector<int>{0, 1, 3}, std::vector<int>{2}));
  options.wo_steps = 4;
  options.metrics = {"stream_perturbation", "output_error_absolute"};
  const Dataset results = study_of(trace, options);
  std::vector<std::vector<float>> norms;
  for (const int layer : options.layers) norms.push_back(trace.read_layer(layer).residual_norm);
  const size_t count = norms.size();
  check_cells(trace, results, "stream_perturbation",
              [&](int64_t p, int64_t b, size_t t, size_t row) {
    double sum = 0;
    for (size_t l = 0; l < count; ++l) {
      const auto layer = static_cast<int64_t>(l);
      const double error = results.row("output_error_absolute", {p, b, layer})[t];
      const double before = norms[l][row], after = norms[std::min(l + 1, count - 1)][row];
      sum += error * error / (before * after);
    }
    return std::sqrt(sum);
  });
}

TEST_CASE("which layers a stream error is of is said when they are not all", "[run]") {
  Dataset results;
  results.add_dimension("policy", 1);
  results.add_dimension("budget", 1);
  results.add_dimension("layer", 3);
  CHECK(stream_error_layers(results).empty());  // not measured
  results.add(make_variable(declared("stream_error_rms"), results));
  CHECK(stream_error_layers(results) == "the 3 captured layers");  // of an older file
  results.set_attribute("num_layers", int64_t{3});
  CHECK(stream_error_layers(results).empty());
  results.set_attribute("num_layers", int64_t{30});
  CHECK(stream_error_layers(results) == "3 of the model's 30 layers");
}
