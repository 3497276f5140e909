#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "run/trace/attention_reference.hpp"
#include "tests/reference/reference.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

/// Attention of one query over all entries, in float64: [N], 0 where not visible.
std::vector<double> attention(const LayerTrace& layer, int head, int64_t row) {
  return reference::attention(layer, head, reference::logits(layer, head, row)).weight;
}

SynthConfig small_config() {
  SynthConfig config;
  config.prompt = 256;
  config.steps = 64;
  config.type = ElementType::float32;
  config.seed = 3;
  return config;
}

}  // namespace

TEST_CASE("recomputed outputs equal the plain softmax, with every switch on", "[run]") {
  SynthConfig config = small_config();
  config.softcap = 6;
  config.sliding_window = 40;
  config.sink = true;
  config.value_dim = 24;
  const SynthTrace trace(config);
  const LayerTrace layer = trace.read_layer(1);
  REQUIRE(layer.sliding_window == 40);
  const std::vector<int64_t> positions = {0, 30, 300};
  const std::vector<double> outputs = attention_outputs(layer, positions);
  double worst = 0;
  for (int h = 0; h < 4; ++h)
    for (int64_t r = 0; r < 3; ++r) {
      const auto expected = reference::output(
          layer, h, attention(layer, h, positions[static_cast<size_t>(r)]));
      for (size_t c = 0; c < 24; ++c)
        worst = std::max(
            worst, std::fabs(expected[c] - outputs[static_cast<size_t>((h * 3 + r) * 24) + c]));
    }
  CHECK(worst < 1e-12);
}

TEST_CASE("a synthetic trace verifies in every element type and shape", "[run]") {
  SynthConfig config = small_config();
  config.type = GENERATE(ElementType::float32, ElementType::float16, ElementType::bfloat16);
  config.heads = GENERATE(1, 6);
  config.kv_heads = config.heads == 6 ? 2 : 1;
  config.head_dim = config.heads == 6 ? 64 : 5;
  config.value_dim = 20;
  config.query_window = config.heads == 6 ? -1 : 16;
  config.sink = config.heads == 6;
  const SynthTrace trace(config);
  CHECK(trace.info().query_position.size() == (config.heads == 6 ? 320u : 80u));
  CHECK(trace.info().query_position.back() == 319);
  for (const int layer : trace.info().layers)
    CHECK(check_layer(trace.read_layer(layer, true)).error < 1e-6);
}

TEST_CASE("heavy hitters hold most of the attention to what is not near", "[run]") {
  const SynthConfig config = small_config();
  const SynthTrace trace(config);
  const SynthPlan plan = plan_synth(config);
  const LayerTrace layer = trace.read_layer(0);
  double hitters = 0;
  for (int64_t row = 260; row < 320; ++row) {
    const auto weights = attention(layer, 1, row);
    for (const int64_t position : plan.heavy_hitters)
      hitters += weights[static_cast<size_t>(position)] / 60;
  }
  // They are 2 % of the entries; evenly spread attention would give them as much.
  CHECK(plan.heavy_hitters.size() < 6);
  CHECK(hitters > 0.15);
}

TEST_CASE("a spike looks at an entry that its neighbours ignore", "[run]") {
  const SynthConfig config = small_config();
  const SynthTrace trace(config);
  const SynthPlan plan = plan_synth(config);
  REQUIRE(plan.spikes.size() == 3);
  for (const int index : trace.info().layers) {
    const LayerTrace layer = trace.read_layer(index);
    for (const Spike& spike : plan.spikes)
      for (int h = 0; h < 4; ++h) {
        const auto at = static_cast<size_t>(spike.position);
        CHECK(attention(layer, h, spike.step)[at] > 0.5);
        CHECK(attention(layer, h, spike.step + 1)[at] < 0.1);
      }
  }
}

TEST_CASE("the hot spot of even heads drifts backwards through the prompt", "[run]") {
  const SynthConfig config = small_config();
  const SynthTrace trace(config);
  const LayerTrace layer = trace.read_layer(1);
  const auto near = [&](int64_t row, double center) {
    const auto weights = attention(layer, 0, row);
    double mass = 0;
    for (int64_t i = 0; i < 256; ++i)
      if (std::fabs(static_cast<double>(i) - center) <= 12) mass += weights[static_cast<size_t>(i)];
    return mass;
  };
  const double early = hot_spot(config, 265), late = hot_spot(config, 310);
  CHECK(early > late + 100);
  CHECK(near(265, early) > 2 * near(310, early));
  CHECK(near(310, late) > 2 * near(265, late));
}

TEST_CASE("the plan is recorded in the trace", "[run]") {
  const SynthConfig config = small_config();
  const auto source = nlohmann::json::parse(SynthTrace(config).info().source);
  const SynthPlan plan = plan_synth(config);
  CHECK(source["heavy_hitters"] == plan.heavy_hitters);
  CHECK(source["spikes"][0]["step"] == plan.spikes[0].step);
}

TEST_CASE("the same seed gives the same tensors with any number of threads, another seed others",
          "[run]") {
  SynthConfig config = small_config();
  const auto keys = [&](uint64_t seed, int thread_count) {
    config.seed = seed;
    const ForcedThreads forced(thread_count);
    const LayerTrace layer = SynthTrace(config).read_layer(1, true);
    std::vector<float> all(static_cast<size_t>(layer.k.count()));
    widen(layer.k.type(), layer.k.data(), layer.k.count(), all.data());
    all.insert(all.end(), layer.check_output.begin(), layer.check_output.end());
    return all;
  };
  const auto one = keys(5, 1);
  CHECK(one == keys(5, 2));
  CHECK(one == keys(5, 8));
  CHECK(one != keys(6, 2));
}

TEST_CASE("tiny synthetic traces work", "[run]") {
  SynthConfig config;
  config.prompt = GENERATE(1, 2, 3);
  config.steps = GENERATE(0, 1);
  config.num_layers = 1;
  config.head_dim = config.value_dim = 4;
  const SynthTrace trace(config);
  CHECK(check_layer(trace.read_layer(0, true)).error < 1e-6);
}
