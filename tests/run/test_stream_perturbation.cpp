// Each layer's error against the stream that it is added to, from its definition in float64.
#include <catch2/catch.hpp>
#include <cmath>

#include "run/study/study.hpp"
#include "run/trace/synth.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

TEST_CASE("an error counts by the norms before and after its layer", "[run]") {
  SynthConfig config;
  config.prompt = 40;
  config.steps = 6;
  config.num_layers = 4;
  config.head_dim = config.value_dim = 16;
  config.hidden = 24;
  config.type = ElementType::float32;
  const TemporaryFolder folder;
  write_synth(config, folder / "t.h5");
  const TraceReader reader(folder / "t.h5");
  StudyOptions options;
  options.records = {Record::parse("streaming"), Record::parse("snapkv,window=8")};
  options.budgets = {Budget::parse("0.3"), Budget::parse("1.0")};
  options.layers = GENERATE(std::vector<int>{0, 1, 3}, std::vector<int>{2});
  options.wo_steps = 4;
  options.metrics = {"stream_perturbation", "output_error_absolute"};
  Study study(reader, options);
  const auto backend = make_cpu_backend();
  const Dataset results = study.run(*backend);
  const auto first = static_cast<size_t>(reader.info().first_step());
  std::vector<std::vector<float>> norms;
  for (const int layer : options.layers) norms.push_back(reader.read_layer(layer).residual_norm);
  const size_t count = norms.size();
  for (int64_t p = 0; p < 2; ++p) {
    for (int64_t b = 0; b < 2; ++b) {
      const auto found = results.row("stream_perturbation", {p, b});
      double squares = 0;
      int evaluated = 0;
      for (size_t t = 0; t < found.size(); ++t) {
        double sum = 0;
        for (size_t l = 0; l < count; ++l) {
          const double error = results.row("output_error_absolute",
                                           {p, b, static_cast<int64_t>(l)})[t];
          const double before = norms[l][first + t];
          const double after = norms[std::min(l + 1, count - 1)][first + t];
          sum += error * error / (before * after);
        }
        CHECK(std::isnan(found[t]) == std::isnan(sum));
        if (std::isnan(sum)) continue;
        CHECK(found[t] == Approx(std::sqrt(sum)).margin(1e-12));
        squares += sum;
        ++evaluated;
      }
      CHECK(evaluated == 4);
      const double rms = results.row("stream_perturbation_rms", {p, b})[0];
      CHECK(rms == Approx(std::sqrt(squares / evaluated)));
      CHECK((rms > 0) == (b == 0));
    }
  }
}
