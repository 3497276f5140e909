#include "tests/support/random_trace.hpp"

#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "sim/core/numbers.hpp"

namespace kvsim::test {
namespace {

/// Every element scale * normal, or an integer in -2..2.
Tensor random_tensor(const RandomTraceShape& shape, uint64_t stream, std::array<int64_t, 3> size,
                     double scale) {
  Tensor tensor(shape.type, size);
  std::vector<float> values(static_cast<size_t>(tensor.count()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = shape.integers
                    ? static_cast<float>(std::floor(5 * uniform(shape.seed, stream, i, 9)) - 2)
                    : static_cast<float>(scale * normal(shape.seed, stream, i));
  narrow(shape.type, values.data(), tensor.count(), tensor.data());
  return tensor;
}

/// `probe` with its tensors, which are drawn from streams `stream` and the next ones.
void add_probe(const RandomTraceShape& shape, ProbeInfo probe, uint64_t stream,
               RandomTrace& trace) {
  const int64_t tokens = probe.tokens();
  probe.has_keys = probe.has_residual_norm = probe.has_input_norm = true;
  probe.has_output_gradient = true;
  ProbeLayer layer;
  layer.q = random_tensor(shape, stream, {shape.query_heads, tokens, shape.d}, shape.logit_spread);
  layer.k = random_tensor(shape, stream + 1, {shape.kv_heads, tokens, shape.d}, 1.0);
  layer.v = random_tensor(shape, stream + 2, {shape.kv_heads, tokens, shape.dv}, 1.0);
  for (uint64_t t = 0; t < static_cast<uint64_t>(tokens); ++t) {
    layer.residual_norm.push_back(static_cast<float>(1 + uniform(shape.seed, stream + 3, t, 0)));
    layer.input_norm.push_back(static_cast<float>(1 + uniform(shape.seed, stream + 4, t, 0)));
    layer.output_gradient.push_back(static_cast<float>(1 + uniform(shape.seed, stream + 5, t, 0)));
  }
  trace.info.probes.push_back(std::move(probe));
  trace.layer.probes.push_back(std::move(layer));
}

/// `count` numbers between 0.5 and 2.
std::vector<float> sizes(uint64_t seed, uint64_t stream, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(
        static_cast<float>(0.5 + 1.5 * uniform(seed, stream, static_cast<uint64_t>(i), 3)));
  return values;
}

/// Roots of the norms are those of no model: what is measured does not depend on them.
void add_between(const RandomTraceShape& shape, RandomTrace& trace) {
  LayerTrace& layer = trace.layer;
  const int64_t heads = shape.query_heads, stored = std::ssize(trace.info.query_position);
  const auto has = [&](char letter) { return shape.between.find(letter) != std::string::npos; };
  const auto gate = [&](uint64_t stream, int64_t rows) {
    RandomTraceShape real = shape;
    real.integers = false;
    return random_tensor(real, stream, {heads, rows, has('h') ? 1 : shape.dv}, 1.0);
  };
  if (has('g') || has('h')) layer.path.gate = gate(51, stored);
  for (size_t p = 0; p < layer.probes.size() && !layer.path.gate.empty(); ++p)
    layer.probes[p].gate = gate(60 + p, trace.info.probes[p].tokens());
  const auto norm = [&](PathNorm& to, uint64_t stream, int64_t width) {
    to.gain = sizes(shape.seed, stream, width);
    to.divides = true;
    to.eps = 0.1;
    to.rms = sizes(shape.seed, stream + 1, stored);
  };
  if (has('i')) norm(layer.path.inner, 52, heads * shape.dv);
  if (has('o')) norm(layer.path.outer, 54, shape.hidden);
  if (has('m')) layer.path.outer.gain.assign(static_cast<size_t>(shape.hidden), 0.25f);
}

/// Seven tokens in parts of four and three.
ProbeInfo repeat_probe(int64_t n) {
  ProbeInfo probe;
  probe.name = "repeat";
  probe.position = {n, n + 1, n + 2, n + 3, n, n + 1, n + 2};
  probe.parts = {{{0, 4}, {0, n / 2}}, {{4, 7}, {n / 2, n}}};
  return probe;
}

/// Five tokens in one part, the last of which answers.
ProbeInfo draft_probe(int64_t n) {
  ProbeInfo probe;
  probe.name = "draft";
  probe.position = {n, n + 1, n + 2, n + 3, n + 4};
  probe.parts = {{{0, 5}, {}}};
  probe.answer_begin = 4;
  return probe;
}

}  // namespace

double normal(uint64_t seed, uint64_t stream, uint64_t i) {
  const double u = 1.0 - uniform(seed, stream, i, 1), v = uniform(seed, stream, i, 2);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

void set_element(Tensor& tensor, int64_t a, int64_t b, int64_t c, float value) {
  const size_t at = static_cast<size_t>(c) * element_size(tensor.type());
  narrow(tensor.type(), &value, 1, tensor.data() + (tensor.row(a, b) - tensor.data()) + at);
}

float element(const Tensor& tensor, int64_t a, int64_t b, int64_t c) {
  float value = 0;
  const std::byte* const from = tensor.row(a, b) +
                                static_cast<size_t>(c) * element_size(tensor.type());
  if (tensor.type() == ElementType::float32)  // most are; tsan would watch a copy of the library
    std::memcpy(&value, from, sizeof value);
  else
    widen(tensor.type(), from, 1, &value);
  return value;
}

std::unique_ptr<RandomTrace> random_trace(const RandomTraceShape& shape) {
  auto trace = std::make_unique<RandomTrace>();
  TraceInfo& info = trace->info;
  info.model = "random";
  info.num_layers = 1;
  info.layers = {0};
  info.num_query_heads = shape.query_heads;
  info.num_kv_heads = shape.kv_heads;
  info.head_dim = shape.d;
  info.hidden_size = shape.hidden;
  info.prompt_len = shape.prompt;
  info.total_len = shape.prompt + shape.later;
  info.query_position = shape.queries;
  if (info.query_position.empty()) {
    info.query_position.resize(static_cast<size_t>(info.total_len));
    std::iota(info.query_position.begin(), info.query_position.end(), int64_t{0});
  }
  const double d = static_cast<double>(shape.d);
  for (int64_t j = 0; j < shape.d / 2; ++j)
    info.rope.inv_freq.push_back(std::pow(1000.0, -2 * static_cast<double>(j) / d));
  LayerTrace& layer = trace->layer;
  layer.info = &info;
  layer.scale = info.attention_scale = shape.integers ? 0.25 : 1.0 / std::sqrt(d);
  layer.softcap = shape.softcap;
  layer.sliding_window = shape.window;
  const int64_t stored = static_cast<int64_t>(info.query_position.size());
  layer.q = random_tensor(shape, 1, {shape.query_heads, stored, shape.d}, shape.logit_spread);
  layer.k = random_tensor(shape, 2, {shape.kv_heads, info.total_len, shape.d}, 1.0);
  layer.v = random_tensor(shape, 3, {shape.kv_heads, info.total_len, shape.dv}, 1.0);
  layer.wo = random_tensor(shape, 4, {shape.query_heads, shape.dv, shape.hidden},
                           1.0 / std::sqrt(static_cast<double>(shape.dv)));
  for (int h = 0; h < shape.query_heads && shape.sink; ++h)
    layer.attention_sink.push_back(
        static_cast<float>(normal(shape.seed, 5, static_cast<uint64_t>(h))));
  if (shape.probe) add_probe(shape, repeat_probe(shape.prompt), 11, *trace);
  if (shape.draft) add_probe(shape, draft_probe(shape.prompt), 31, *trace);
  add_between(shape, *trace);
  return trace;
}

}  // namespace kvsim::test
