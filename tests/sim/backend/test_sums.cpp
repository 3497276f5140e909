#include <catch2/catch.hpp>
#include <cmath>

#include "tests/reference/reference.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {
namespace {

// That of one A: all terms are positive.
constexpr double kSumTolerance = 1e-5;
// Float64 sums of products of both signs.
constexpr double kMetricTolerance = 1e-12;

AttentionSumRequest request_for(const TraceInfo& info, int64_t columns, int64_t every) {
  AttentionSumRequest request;
  request.columns = columns;
  for (int64_t row = 0; row < static_cast<int64_t>(info.query_position.size()); row += every) {
    request.rows.push_back(row);
    request.weights.push_back(1 + 0.25 * static_cast<double>(row % 5));
  }
  return request;
}

/// Kernels on the host runtime are slow: fewer rows for them.
int64_t stride_for(const std::string& backend) { return backend == "cuda on the host" ? 23 : 1; }

double largest_error(Backend& backend, const LayerTrace& layer,
                     const AttentionSumRequest& request) {
  const int heads = layer.info->num_query_heads;
  Table<double> got(heads, request.columns, 7.0);
  backend.attention_sums(layer, request, got.data());
  double worst = 0;
  for (int h = 0; h < heads; ++h) {
    std::vector<double> want(static_cast<size_t>(request.columns), 0.0);
    for (size_t j = 0; j < request.rows.size(); ++j) {
      const auto row = reference::attention(layer, h, reference::logits(layer, h, request.rows[j]));
      for (size_t i = 0; i < want.size(); ++i) want[i] += request.weights[j] * row.weight[i];
    }
    for (size_t i = 0; i < want.size(); ++i) {
      const double x = got(h, static_cast<int64_t>(i));
      worst = std::max(worst, want[i] > 1e-30 ? std::fabs(x / want[i] - 1) : std::fabs(x));
    }
  }
  return worst;
}

std::unique_ptr<RandomTrace> metric_trace(int64_t dv, ElementType type) {
  RandomTraceShape shape;
  shape.query_heads = 6;
  shape.kv_heads = 2;
  shape.dv = dv;
  shape.hidden = 150;
  shape.prompt = 300;
  shape.type = type;
  return random_trace(shape);
}

}  // namespace

TEST_CASE("sums of attention over queries agree with float64", "[backend][sums]") {
  struct Case {
    int query_heads, kv_heads;
    int64_t d, prompt, later;
    ElementType type = ElementType::float32;
  };
  constexpr ElementType kPairs = ElementType::bfloat16;
  for (auto& [name, backend] : all_backends())
    for (const Case& c : std::vector<Case>{
             {1, 1, 64, 33, 5}, {6, 2, 10, 500, 7}, {16, 1, 80, 40, 3}, {1, 1, 128, 900, 4},
             {3, 1, 96, 1, 0}, {6, 2, 10, 500, 7, kPairs}, {1, 1, 128, 410, 4, kPairs},
             {2, 1, 7, 90, 3, kPairs}}) {
      CAPTURE(name, c.query_heads, c.d, c.prompt, element_name(c.type));
      RandomTraceShape shape;
      shape.type = c.type;
      shape.query_heads = c.query_heads;
      shape.kv_heads = c.kv_heads;
      shape.d = c.d;
      shape.prompt = c.prompt;
      shape.later = c.later;
      const auto trace = random_trace(shape);
      const auto all = request_for(trace->info, c.prompt + c.later, stride_for(name));
      CHECK(largest_error(*backend, trace->layer, all) < kSumTolerance);
      const auto some = request_for(trace->info, std::max<int64_t>(1, c.prompt / 2), 3);
      CHECK(largest_error(*backend, trace->layer, some) < kSumTolerance);
      const auto none = request_for(trace->info, 0, 3);
      CHECK(largest_error(*backend, trace->layer, none) == 0);
    }
}

TEST_CASE("sums of attention honour softcap, sink and huge logits", "[backend][sums]") {
  for (auto& [name, backend] : all_backends())
    for (const double softcap : {0.0, 5.0})
      for (const bool sink : {false, true})
        for (const double spread : {0.01, 8.0, 60.0}) {
          CAPTURE(name, softcap, sink, spread);
          RandomTraceShape shape;
          shape.type = sink ? ElementType::bfloat16 : ElementType::float32;
          shape.prompt = 800;
          shape.softcap = softcap;
          shape.sink = sink;
          shape.logit_spread = spread;
          const auto trace = random_trace(shape);
          // A logit of size 200 has an error of 1e-5 in float32, and so has its exponential. A cap
          // takes most of it away; tensor cores, whose sums are cut off, start with twice as much.
          const bool tensor_cores = name.starts_with("cuda");
          const double capped = tensor_cores ? 4 * kSumTolerance : kSumTolerance;
          const double tolerance =
              spread <= 10 ? kSumTolerance : softcap > 0 ? capped : 2e-4;
          const auto request = request_for(trace->info, 800, 2 * stride_for(name) - 1);
          CHECK(largest_error(*backend, trace->layer, request) < tolerance);
        }
}

TEST_CASE("sums of attention do not depend on the number of threads", "[backend][sums]") {
  RandomTraceShape shape;
  shape.prompt = 700;
  const auto trace = random_trace(shape);
  const auto request = request_for(trace->info, 700, 1);
  for (auto& [name, backend] : all_backends()) {
    if (name == "cuda on the host") continue;   // has one thread
    std::vector<std::vector<double>> seen;
    for (const int count : {1, 2, 5}) {
      const ForcedThreads forced(count);
      seen.emplace_back(static_cast<size_t>(4 * 700));
      backend->attention_sums(trace->layer, request, seen.back().data());
    }
    CAPTURE(name);
    CHECK(seen[0] == seen[1]);
    CHECK(seen[0] == seen[2]);
  }
}

TEST_CASE("products in the metric of W_O agree with float64", "[backend][metric]") {
  for (auto& [name, backend] : all_backends())
    for (const int64_t dv : {7, 64, 130})
      for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
        CAPTURE(name, dv);
        const auto trace = metric_trace(dv, type);
        const LayerTrace& layer = trace->layer;
        const Range entries{3, 295};
        const size_t width = static_cast<size_t>(dv), count = static_cast<size_t>(entries.size());
        std::vector<double> g(width * width), forms(count), y, products(8 * count);
        backend->output_gram(layer, 4, 5, g.data());
        backend->value_forms(layer, 1, g.data(), entries, forms.data());
        for (uint64_t i = 0; i < 8 * width; ++i) y.push_back(normal(3, 5, i));
        backend->value_products(layer, 1, y.data(), 8, entries, products.data());
        double worst = 0;
        for (size_t at = 0; at < count; at += 17) {
          const auto v = reference::value(layer, 4, entries.begin + static_cast<int64_t>(at));
          const auto a = reference::project(layer, 4, v), b = reference::project(layer, 5, v);
          double form = 0;
          for (size_t c = 0; c < a.size(); ++c) form += a[c] * b[c];
          const double size = reference::l2(a) * reference::l2(b);
          worst = std::max(worst, std::fabs(forms[at] - form) / size);
          for (size_t r = 0; r < 8; ++r) {
            double product = 0;
            for (size_t c = 0; c < width; ++c) product += y[r * width + c] * v[c];
            worst = std::max(worst, std::fabs(products[r * count + at] - product) /
                                        reference::l2(v));
          }
        }
        CHECK(worst < kMetricTolerance);
      }
}

}  // namespace kvsim::test
