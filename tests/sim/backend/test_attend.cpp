#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/sim/backend/backends.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSlotLogitTolerance = 1e-5;  // of float32 logits of size 5..20

struct Shape {
  int heads;
  int64_t rows, d, dv;
  std::vector<int64_t> segments;  // slots of each
  double softcap;
  bool sink, weighted;
};

/// Random queries of the last heads of a layer and slots that they attend to.
struct SlotCase {
  explicit SlotCase(const Shape& shape) : trace(make(shape)), heads(shape.heads) {
    const LayerTrace& layer = trace->layer;
    std::mt19937 random(static_cast<unsigned>(shape.rows * 7 + shape.d));
    std::normal_distribution<float> normal;
    const auto numbers = [&](int64_t count, float size) {
      std::vector<float> all(static_cast<size_t>(count));
      for (float& x : all) x = size * normal(random);
      return all;
    };
    queries = numbers(shape.heads * shape.rows * shape.d, 1);
    for (const int64_t count : shape.segments) {
      keys.push_back(numbers(count * shape.d, 2));
      values.push_back(numbers(count * shape.dv, 1));
      weights.push_back(numbers(shape.weighted ? shape.heads * count : 0, 3));
    }
    rows.heads = shape.heads;
    rows.sinks = sinks_from(layer, layer.info->num_query_heads - shape.heads);
    rows.rows = shape.rows;
    rows.queries = queries.data();
    for (size_t i = 0; i < shape.segments.size(); ++i)
      rows.segments.push_back({keys[i].data(), values[i].data(), shape.segments[i],
                               shape.weighted && i == 0 ? weights[i].data() : nullptr});
    for (int64_t r = 0; r < shape.rows; ++r)
      seen.push_back(std::max<int64_t>(1, rows.slots() - shape.rows + 1 + r));
    rows.seen = seen.data();
  }
  static std::unique_ptr<RandomTrace> make(const Shape& shape) {
    RandomTraceShape of_trace;
    of_trace.query_heads = shape.heads + 1;
    of_trace.kv_heads = 1;
    of_trace.d = shape.d;
    of_trace.dv = shape.dv;
    of_trace.prompt = 4;
    of_trace.later = 2;
    of_trace.softcap = shape.softcap;
    of_trace.sink = shape.sink;
    return random_trace(of_trace);
  }

  double key(int64_t slot, int64_t j) const { return at(keys, slot, j, trace->layer.k.dim(2)); }
  double value(int64_t slot, int64_t c) const {
    return at(values, slot, c, trace->layer.value_dim());
  }
  double at(const std::vector<std::vector<float>>& parts, int64_t slot, int64_t c,
            int64_t width) const {
    size_t part = 0;
    while (slot >= rows.segments[part].count) slot -= rows.segments[part++].count;
    return static_cast<double>(parts[part][static_cast<size_t>(slot * width + c)]);
  }

  std::unique_ptr<RandomTrace> trace;
  int heads;
  std::vector<float> queries;
  std::vector<std::vector<float>> keys, values, weights;
  std::vector<int64_t> seen;
  SlotRows rows;
};

/// What one query of head `x` sees, in float64: logits, -inf beyond.
std::vector<double> logits_of(const SlotCase& c, int64_t x, int64_t r) {
  const LayerTrace& layer = c.trace->layer;
  const int64_t d = layer.k.dim(2);
  std::vector<double> logits(static_cast<size_t>(c.rows.slots()), -kInfinity);
  for (int64_t s = 0; s < c.seen[static_cast<size_t>(r)]; ++s) {
    double logit = 0;
    for (int64_t j = 0; j < d; ++j)
      logit += static_cast<double>(c.queries[static_cast<size_t>((x * c.rows.rows + r) * d + j)]) *
               c.key(s, j);
    logit *= layer.scale;
    if (layer.softcap > 0) logit = layer.softcap * std::tanh(logit / layer.softcap);
    const int64_t first = c.rows.segments[0].count;
    if (s < first && !c.weights[0].empty())
      logit += static_cast<double>(c.weights[0][static_cast<size_t>(x * first + s)]);
    logits[static_cast<size_t>(s)] = logit;
  }
  return logits;
}

void check(Backend& backend, const Shape& shape) {
  SlotCase c(shape);
  const LayerTrace& layer = c.trace->layer;
  const int64_t rows = c.rows.heads * c.rows.rows, slots = c.rows.slots(), dv = layer.value_dim();
  std::vector<float> logits(static_cast<size_t>(rows * slots));
  std::vector<float> outputs(static_cast<size_t>(rows * dv));
  std::vector<double> sums(static_cast<size_t>(rows));
  std::vector<float> attention(logits.size(), NAN);
  c.rows.logits = logits.data();
  c.rows.attention = attention.data();
  c.rows.outputs = outputs.data();
  c.rows.log_sum_exp = sums.data();
  backend.attend(layer, {&c.rows, 1});
  double worst_logit = 0, worst_sum = 0, worst_share = 0, worst_output = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto x = row / c.rows.rows;
    const std::vector<double> expected = logits_of(c, x, row % c.rows.rows);
    const double sink = shape.sink ? static_cast<double>(c.rows.sinks[x]) : -kInfinity;
    double total = std::exp(sink);
    for (size_t s = 0; s < expected.size(); ++s) {
      const double got = static_cast<double>(logits[static_cast<size_t>(row * slots) + s]);
      if (got != expected[s]) worst_logit = std::max(worst_logit, std::fabs(got - expected[s]));
      total += std::exp(expected[s]);
    }
    for (size_t s = 0; s < expected.size(); ++s) {
      const double share = std::exp(expected[s]) / total;
      const double got = static_cast<double>(attention[static_cast<size_t>(row * slots) + s]);
      worst_share = std::max(worst_share, share == 0 ? got : std::fabs(got / share - 1));
    }
    worst_sum = std::max(worst_sum, std::fabs(sums[static_cast<size_t>(row)] - std::log(total)));
    double error = 0, size = 0;
    for (int64_t v = 0; v < dv; ++v) {
      double z = 0;
      for (size_t s = 0; s < expected.size(); ++s)
        z += std::exp(expected[s]) / total * c.value(static_cast<int64_t>(s), v);
      const double got = static_cast<double>(outputs[static_cast<size_t>(row * dv + v)]);
      error += (got - z) * (got - z);
      size += z * z;
    }
    worst_output = std::max(worst_output, std::sqrt(error / size));
  }
  CHECK(worst_logit < kSlotLogitTolerance);
  CHECK(worst_sum < kSlotLogitTolerance);
  CHECK(worst_share <
        2 * kSlotLogitTolerance);  // relative, as the logits and their sum are absolute
  CHECK(worst_output < 1e-5);
}

}  // namespace

TEST_CASE("attention over slots agrees with float64", "[backend][attend]") {
  for (auto& [name, backend] : all_backends())
    for (const Shape& shape : std::vector<Shape>{{1, 5, 64, 64, {40, 5}, 0, false, false},
                                                 {3, 1, 10, 7, {20}, 0, false, true},
                                                 {3, 1, 16, 7, {20, 300}, 5, true, true},
                                                 {1, 2, 64, 64, {300, 2}, 0, false, false},
                                                 {4, 2, 16, 24, {0, 5, 130}, 0, true, false},
                                                 {8, 1, 32, 32, {513}, 6, false, true},
                                                 {3, 40, 16, 20, {290, 40}, 8, true, true},
                                                 {2, 9, 80, 144, {0, 9}, 0, true, false},
                                                 {2, 100, 9, 12, {1, 600}, 0, false, true}}) {
      CAPTURE(name, shape.heads, shape.rows, shape.d, shape.softcap, shape.sink);
      check(*backend, shape);
    }
}

TEST_CASE("attention over slots brings large logits under one shift", "[backend][attend]") {
  for (auto& [name, backend] : all_backends()) {
    CAPTURE(name);
    SlotCase c({1, 2, 16, 16, {600}, 0, false, true});
    for (size_t s = 0; s < 600; ++s) c.weights[0][s] = s < 300 ? -60.0f : 70.0f;
    std::vector<double> sums(2);
    c.rows.log_sum_exp = sums.data();
    backend->attend(c.trace->layer, {&c.rows, 1});
    for (int64_t r = 0; r < 2; ++r) {
      double total = 0;
      for (const double logit : logits_of(c, 0, r)) total += std::exp(logit - 70);
      CHECK(sums[static_cast<size_t>(r)] == Approx(70 + std::log(total)).margin(2e-5));
    }
  }
}

TEST_CASE("slots with a log-weight of -inf are not seen, and nothing seen is 0",
          "[backend][attend]") {
  for (auto& [name, backend] : all_backends())
    for (const bool sink : {false, true})
      for (const int64_t rows : {1, 20}) {
        CAPTURE(name, sink, rows);
        SlotCase c({2, rows, 16, 16, {300, 4}, 0, sink, true});
        c.rows.seen = nullptr;
        c.seen.assign(static_cast<size_t>(rows), c.rows.slots());
        for (size_t s = 0; s < 600; ++s)
          if (s % 149 != 0) c.weights[0][s] = -static_cast<float>(kInfinity);
        std::vector<double> sums(static_cast<size_t>(2 * rows));
        std::vector<float> outputs(static_cast<size_t>(2 * rows * 16), NAN);
        c.rows.log_sum_exp = sums.data();
        c.rows.outputs = outputs.data();
        backend->attend(c.trace->layer, {&c.rows, 1});
        for (int64_t row = 0; row < 2 * rows; ++row) {
          const int64_t x = row / rows;
          double total = sink ? std::exp(static_cast<double>(c.rows.sinks[x])) : 0, z = 0;
          const std::vector<double> logits = logits_of(c, x, row % rows);
          for (size_t s = 0; s < logits.size(); ++s) {
            total += std::exp(logits[s]);
            z += std::exp(logits[s]) * c.value(static_cast<int64_t>(s), 3);
          }
          CHECK(sums[static_cast<size_t>(row)] ==
                Approx(std::log(total)).margin(kSlotLogitTolerance));
          CHECK(static_cast<double>(outputs[static_cast<size_t>(row * 16 + 3)]) ==
                Approx(z / total).margin(1e-5));
        }
        c.rows.segments.pop_back();
        std::ranges::fill(c.weights[0], -static_cast<float>(kInfinity));
        backend->attend(c.trace->layer, {&c.rows, 1});
        for (int64_t row = 0; row < 2 * rows; ++row)
          if (sink)
            CHECK(sums[static_cast<size_t>(row)] ==
                  Approx(static_cast<double>(c.rows.sinks[row / rows])));
          else
            CHECK(sums[static_cast<size_t>(row)] == -kInfinity);
        for (const float z : outputs) CHECK(z == 0.0f);
      }
}

}  // namespace kvsim::test
