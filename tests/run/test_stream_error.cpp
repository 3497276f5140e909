#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "analysis/stream_error.hpp"
#include "analysis/stream_layers.hpp"
#include "analysis/summary.hpp"
#include "run/measures/variables.hpp"
#include "run/study/study.hpp"
#include "run/trace/synth.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

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
  SynthConfig config;
  config.prompt = 40;
  config.steps = 6;
  config.num_layers = 3;
  config.head_dim = config.value_dim = 16;
  config.hidden = 24;
  config.type = ElementType::float32;
  const TemporaryFolder folder;
  write_synth(config, folder / "t.h5");
  const TraceReader reader(folder / "t.h5");
  REQUIRE(reader.info().has_residual_norm);
  StudyOptions options;
  options.records = {Record::parse("streaming"), Record::parse("snapkv,window=8")};
  options.budgets = {Budget::parse("0.3"), Budget::parse("1.0")};
  options.layers = {0, 2};
  options.wo_steps = 4;
  Study study(reader, options);
  const auto backend = make_cpu_backend();
  const Dataset results = study.run(*backend);
  CHECK(std::get<int64_t>(*results.attribute("num_layers")) == 3);
  CHECK(std::get<std::string>(*results.attribute("stream_error_note")) ==
        "Stream error is of 2 of the model's 3 layers.");
  const auto first = static_cast<size_t>(reader.info().first_step());
  const LayerTrace low = reader.read_layer(0);
  const LayerTrace high = reader.read_layer(2);
  for (int64_t p = 0; p < 2; ++p) {
    for (int64_t b = 0; b < 2; ++b) {
      const auto found = results.row("stream_error", {p, b});
      double squares = 0;
      int evaluated = 0;
      for (size_t t = 0; t < found.size(); ++t) {
        const double a = results.row("residual_error", {p, b, 0})[t] * low.residual_norm[first + t];
        const double c = results.row("residual_error", {p, b, 1})[t] *
                         high.residual_norm[first + t];
        CHECK(std::isnan(found[t]) == std::isnan(a));
        if (std::isnan(a)) continue;
        CHECK(found[t] == Approx(std::hypot(a, c) / high.residual_norm[first + t]).margin(1e-12));
        squares += found[t] * found[t];
        ++evaluated;
      }
      CHECK(evaluated == 4);
      const double rms = results.row("stream_error_rms", {p, b})[0];
      CHECK(rms == Approx(std::sqrt(squares / evaluated)));
      CHECK((rms > 0) == (b == 0));
    }
  }
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
