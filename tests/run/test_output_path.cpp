// What stands between heads and stream beside W_O: trace-format.md 8, metrics.md 2.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "run/trace/attention_reference.hpp"
#include "sim/core/layer_trace.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/plain_layer.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

using Heads = std::vector<std::vector<double>>;

/// Outputs of all heads at a later step over what is kept of the prompt, all of it for record -1.
Heads outputs_at(const StudyCase& study, int64_t record, int64_t step) {
  const int64_t row = study.info().first_step() + step;
  Heads z;
  for (int h = 0; h < study.info().num_query_heads; ++h) {
    std::vector<bool> present(static_cast<size_t>(study.info().total_len), true);
    for (int64_t i = 0; i < study.info().prompt_len && record >= 0; ++i)
      present[static_cast<size_t>(i)] = study.kept(record, 0, h, i);
    const auto logits = reference::logits(study.layer(), h, row);
    const auto attention = reference::attention(study.layer(), h, logits, present);
    z.push_back(reference::output(study.layer(), h, attention.weight));
  }
  return z;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> difference = a;
  for (size_t c = 0; c < a.size(); ++c) difference[c] -= b[c];
  return reference::l2(difference);
}

StudyCase study_of_path(
    const std::string& between, const std::vector<std::string>& records,
    const std::function<void(StudyOptions&)>& change = [](StudyOptions&) {}) {
  RandomTraceShape shape;
  shape.between = between;
  shape.sink = true;
  return {shape, {}, records, [&](StudyOptions& options) {
            options.wo_steps = 0;
            options.metrics = {"output_error_absolute"};
            change(options);
          }};
}

}  // namespace

TEST_CASE("output errors are those of what is added to the stream, norms and gates as they become",
          "[run][measures][path]") {
  const std::string between = GENERATE("", "m", "g", "h", "i", "o", "gm", "gi", "io", "hio");
  CAPTURE(between);
  const StudyCase study = study_of_path(between, {"snapkv,window=4", "streaming"});
  for (int64_t record = 0; record < 2; ++record)
    for (int64_t step = 0; step < study.info().steps(); ++step) {
      const int64_t row = study.info().first_step() + step;
      const auto full = reference::added(study.layer(), row, outputs_at(study, -1, step));
      const auto left = reference::added(study.layer(), row, outputs_at(study, record, step));
      const double error = distance(full, left);
      CHECK(study.value("output_error_absolute", {record, 0, 0, step}) ==
            Approx(error).epsilon(2e-5));
      CHECK(study.value("output_error", {record, 0, 0, step}) ==
            Approx(error / reference::l2(full)).epsilon(2e-5));
    }
}

TEST_CASE("nothing is lost where everything is kept", "[run][measures][path]") {
  const StudyCase study = study_of_path(
      "gio", {"snapkv,window=4"}, [](StudyOptions& o) { o.budgets = {Budget::parse("1.0")}; });
  for (int64_t step = 0; step < study.info().steps(); ++step)
    CHECK(study.value("output_error", {0, 0, 0, step}) == 0);
}

TEST_CASE("a head's own error has the gate of its step", "[run][measures][path]") {
  const StudyCase study = study_of_path("gio", {"snapkv,window=4"},
                                        [](StudyOptions& o) { o.per_head = true; });
  const LayerTrace& layer = study.layer();
  std::vector<float> gate;
  for (int64_t step = 0; step < study.info().steps(); ++step) {
    const Heads full = outputs_at(study, -1, step), left = outputs_at(study, 0, step);
    for (int h = 0; h < study.info().num_query_heads; ++h) {
      layer.path.read_gate(h, study.info().first_step() + step, gate);
      std::vector<double> z = full[static_cast<size_t>(h)], change = left[static_cast<size_t>(h)];
      for (size_t c = 0; c < z.size(); ++c) {
        const double by = static_cast<double>(gate[c]) /
                          static_cast<double>(
                              layer.path.usual_gate[static_cast<size_t>(h) * z.size() + c]);
        change[c] = (change[c] - z[c]) * by;
        z[c] *= by;
      }
      CHECK(study.value("output_error_head", {0, 0, 0, h, step}) ==
            Approx(reference::l2(reference::project(layer, h, change)) /
                   reference::l2(reference::project(layer, h, z)))
                .epsilon(2e-5));
    }
  }
}

TEST_CASE("W* holds gains, the usual gate and the medians of the roots", "[run][path]") {
  const StudyCase study = study_of_path("gio", {"snapkv,window=4"});
  const LayerTrace& layer = study.layer();
  const OutputPath& path = layer.path;
  const int64_t prompt = study.info().first_step();
  const auto median = [&](std::vector<float> roots) {
    roots.resize(static_cast<size_t>(prompt));
    std::ranges::sort(roots);
    return static_cast<double>(roots[(roots.size() - 1) / 2]);
  };
  for (const auto& [h, k, c] : {std::array<int64_t, 3>{0, 0, 0}, {3, 15, 23}, {1, 7, 5}}) {
    double gate = 0;
    for (int64_t q = 0; q < prompt; ++q) {
      const auto one = static_cast<double>(element(path.gate, h, q, k));
      gate += one * one / static_cast<double>(prompt);
    }
    const double inner = path.inner.gain[static_cast<size_t>(h * 16 + k)];
    const double outer = path.outer.gain[static_cast<size_t>(c)];
    CHECK(element(layer.wo, h, k, c) ==
          Approx(std::sqrt(gate) * inner / median(path.inner.rms) *
                 static_cast<double>(element(path.wo, h, k, c)) * outer / median(path.outer.rms))
              .epsilon(1e-5));
  }
}

TEST_CASE("a gate of ones changes no measure", "[run][measures][path]") {
  RandomTraceShape shape;
  const auto with = random_trace(shape), without = random_trace(shape);
  const int64_t stored = std::ssize(with->info.query_position);
  with->layer.path.gate = Tensor(ElementType::float32, {4, stored, 1});
  const std::vector<float> ones(static_cast<size_t>(4 * stored), 1.0f);
  narrow(ElementType::float32, ones.data(), std::ssize(ones), with->layer.path.gate.data());
  const TemporaryFolder folder;
  std::vector<Dataset> results;
  for (const RandomTrace* trace : {with.get(), without.get()}) {
    const std::string path = folder / (trace == with.get() ? "with.h5" : "without.h5");
    write_trace(path, trace->info, {&trace->layer, 1});
    StudyOptions options = options_for(
        {"snapkv,window=4", "knorm,merge=convex", "h2o:official",
         "snapkv,window=4,quantize=kivi,quant_bits=2,quant_group=4,quant_residual=8"},
        {"0.3"}, {0});
    options.per_head = true;
    results.push_back(study_of(TraceReader(path), options));
  }
  for (const char* name :
       {"output_error", "quantization_error", "output_error_head", "retained_importance"}) {
    const auto& a = std::get<std::vector<double>>(results[0].at(name).values);
    const auto& b = std::get<std::vector<double>>(results[1].at(name).values);
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i)
      if (!std::isnan(a[i]) || !std::isnan(b[i]))
        CHECK(a[i] == Approx(b[i]).epsilon(1e-4).margin(1e-6));
  }
}

TEST_CASE("plain code measures the same path", "[run][plain][path]") {
  const StudyCase study = study_of_path("gio", {"snapkv,window=4"});
  PlainSets sets;
  for (int h = 0; h < 4; ++h) {
    sets.emplace_back();
    for (int64_t i = 0; i < study.info().prompt_len; ++i)
      sets.back().push_back(study.kept(0, 0, h, i));
  }
  const int64_t row = study.info().first_step() + 3;
  const PlainMeasures plain = PlainLayer(study.layer(), {row}, false).measure(sets).front();
  CHECK(plain.output_error == Approx(study.value("output_error", {0, 0, 0, 3})).epsilon(2e-5));
}

TEST_CASE("verify judges what is added and the roots", "[run][path]") {
  RandomTraceShape shape;
  shape.between = "gio";
  const auto trace = random_trace(shape);
  LayerTrace& layer = trace->layer;
  trace->info.check_position = {3, 44};
  set_usual_output(layer);
  layer.check_added.clear();
  for (const int64_t row : trace->info.check_position) {
    Heads z;
    std::vector<double> all;
    for (int h = 0; h < 4; ++h) {
      z.push_back(reference::output(
          layer, h, reference::attention(layer, h, reference::logits(layer, h, row)).weight));
      all.insert(all.end(), z.back().begin(), z.back().end());
    }
    for (const double one : reference::added(layer, row, z))
      layer.check_added.push_back(static_cast<float>(one));
    double inner = 0, outer = 0;
    added_to_stream(layer, row, all, &inner, &outer);
    layer.path.inner.rms[static_cast<size_t>(row)] = static_cast<float>(inner);
    layer.path.outer.rms[static_cast<size_t>(row)] = static_cast<float>(outer);
  }
  CHECK(check_added(layer).error < 1e-6);
  CHECK(check_added(layer).head == LayerCheck::kAdded);
  layer.path.outer.rms[44] *= 1.01f;
  CHECK(check_added(layer).error > 1e-3);
  layer.path.outer.rms[44] /= 1.01f;
  layer.path.outer.gain[2] *= 2;
  CHECK(check_added(layer).error > 1e-2);
}
