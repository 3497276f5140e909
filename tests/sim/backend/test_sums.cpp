#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "tests/reference/known_attention.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {
namespace {

// That of one A: all terms are positive.
constexpr double kSumTolerance = 1e-5;
// Float64 sums of products of both signs.
constexpr double kMetricTolerance = 1e-12;

AttentionSumRequest request_for(const TraceInfo& info, int64_t columns, int64_t every) {
  AttentionSumRequest request{.rows = {}, .columns = columns, .sums = {{}}};
  for (int64_t row = 0; row < static_cast<int64_t>(info.query_position.size()); row += every) {
    request.rows.push_back(row);
    request.sums[0].weights.push_back(1 + 0.25 * static_cast<double>(row % 5));
  }
  return request;
}

/// Every kind of sum, with weights of its own; those of the means look at the last rows only.
AttentionSumRequest with_all_terms(AttentionSumRequest request, const TraceInfo& info) {
  using Of = AttentionSum::Of;
  for (const Of of : {Of::below, Of::group_mean, Of::group_square, Of::attention}) {
    AttentionSum sum{of, {}, {}};
    for (const int64_t row : request.rows) {
      const bool seen = !sum.of_groups() || row >= 2 * request.rows.back() / 3;
      sum.weights.push_back(seen ? 0.5 + static_cast<double>(row % 3) : 0);
      if (of == Of::below)
        sum.bounds.push_back(
            1.5 / static_cast<double>(info.query_position[static_cast<size_t>(row)] + 1));
    }
    request.sums.push_back(std::move(sum));
  }
  return request;
}

/// Kernels on the host runtime are slow: fewer rows for them.
int64_t stride_for(const std::string& backend) { return backend == "cuda on the host" ? 23 : 1; }

double largest_error(Backend& backend, reference::KnownAttention& known,
                     const AttentionSumRequest& request) {
  const LayerTrace& layer = known.layer();
  const int heads = layer.info->num_query_heads;
  const Table<double> got = backend.attention_sums(layer, request).front();
  double worst = 0;
  for (int h = 0; h < heads; ++h) {
    std::vector<double> want(static_cast<size_t>(request.columns), 0.0);
    for (size_t j = 0; j < request.rows.size(); ++j) {
      const reference::Attention& row = known.at(h, request.rows[j]).attention;
      const double weight = request.sums[0].weights[j];
      for (size_t i = 0; i < want.size(); ++i) want[i] += weight * row.weight[i];
    }
    for (size_t i = 0; i < want.size(); ++i) {
      const double x = got(h, static_cast<int64_t>(i));
      worst = std::max(worst, want[i] > 1e-30 ? std::fabs(x / want[i] - 1) : std::fabs(x));
    }
  }
  return worst;
}

/// A of all query heads that share a KV head, for one row: [g][columns].
std::vector<std::vector<double>> group_attention(reference::KnownAttention& known, int kv_head,
                                                 int64_t row, int64_t columns) {
  std::vector<std::vector<double>> attention;
  const int heads = known.layer().info->group_size();
  for (int h = kv_head * heads; h < (kv_head + 1) * heads; ++h) {
    attention.push_back(known.at(h, row).attention.weight);
    attention.back().resize(static_cast<size_t>(columns));
  }
  return attention;
}

/// What float64 says of one sum of the request; NaN where an attention is too near its bound.
Table<double> wanted_sum(reference::KnownAttention& known, const AttentionSumRequest& request,
                         const AttentionSum& sum) {
  const LayerTrace& layer = known.layer();
  const int heads = layer.info->group_size(), kv_heads = layer.info->num_kv_heads;
  const bool groups = sum.of_groups();
  Table<double> want(groups ? kv_heads : kv_heads * heads, request.columns);
  for (int kv_head = 0; kv_head < kv_heads; ++kv_head)
    for (size_t j = 0; j < request.rows.size(); ++j) {
      const auto a = group_attention(known, kv_head, request.rows[j], request.columns);
      const int64_t position = layer.info->query_position[static_cast<size_t>(request.rows[j])];
      for (int64_t i = 0; i < std::min(request.columns, position + 1); ++i) {
        double mean = 0;
        for (int x = 0; x < heads; ++x) {
          const double one = a[static_cast<size_t>(x)][static_cast<size_t>(i)];
          mean += one / heads;
          if (groups) continue;
          double& to = want(kv_head * heads + x, i);
          if (sum.of == AttentionSum::Of::attention) {
            to += sum.weights[j] * one;
          } else {
            if (std::fabs(one / sum.bounds[j] - 1) < 1e-4) to = NAN;
            to += one < sum.bounds[j] ? sum.weights[j] : 0;
          }
        }
        if (groups)
          want(kv_head, i) += sum.weights[j] *
                              (sum.of == AttentionSum::Of::group_mean ? mean : mean * mean);
      }
    }
  return want;
}

/// One sum of the request, over the rows that it looks at.
AttentionSumRequest alone(const AttentionSumRequest& request, const AttentionSum& sum) {
  AttentionSumRequest one{.rows = {}, .columns = request.columns, .sums = {{sum.of, {}, {}}}};
  for (size_t j = 0; j < request.rows.size(); ++j) {
    if (sum.weights[j] == 0) continue;
    one.rows.push_back(request.rows[j]);
    one.sums[0].weights.push_back(sum.weights[j]);
    if (!sum.bounds.empty()) one.sums[0].bounds.push_back(sum.bounds[j]);
  }
  return one;
}

/// All kinds of sums over the rows of `first`: each as float64 has it, and the same alone.
void check_all_terms(Backend& backend, reference::KnownAttention& known,
                     const AttentionSumRequest& first) {
  const LayerTrace& layer = known.layer();
  const auto request = with_all_terms(first, *layer.info);
  const auto together = backend.attention_sums(layer, request);
  REQUIRE(together.size() == 5);
  for (size_t s = 0; s < together.size(); ++s) {
    CAPTURE(s);
    const AttentionSum& sum = request.sums[s];
    CHECK(backend.attention_sums(layer, alone(request, sum)).front().values() ==
          together[s].values());
    const Table<double> want = wanted_sum(known, request, sum);
    REQUIRE(together[s].rows() == want.rows());
    double worst = 0;
    int64_t compared = 0;
    for (int64_t r = 0; r < want.rows(); ++r)
      for (int64_t i = 0; i < want.columns(); ++i) {
        if (std::isnan(want(r, i))) continue;
        ++compared;
        worst = std::max(worst,
                         std::fabs(together[s](r, i) - want(r, i)) / std::max(want(r, i), 1e-30));
      }
    CHECK(compared > want.rows() * want.columns() / 2);
    CHECK(worst < (sum.of == AttentionSum::Of::group_square ? 2 : 1) * kSumTolerance);
  }
}

std::unique_ptr<RandomTrace> metric_trace(int64_t dv, ElementType type) {
  return random_trace(
      {.query_heads = 6, .kv_heads = 2, .dv = dv, .hidden = 150, .prompt = 300, .type = type});
}

}  // namespace

TEST_CASE("sums of attention over queries agree with float64", "[backend][sums]") {
  struct Case {
    int query_heads, kv_heads;
    int64_t d, prompt, later;
    ElementType type = ElementType::float32;
  };
  constexpr ElementType kPairs = ElementType::bfloat16;
  const auto backends = all_backends();
  for (const Case& c : std::vector<Case>{{1, 1, 64, 33, 5},
                                         {6, 2, 10, 500, 7},
                                         {16, 1, 80, 40, 3},
                                         {1, 1, 128, 900, 4},
                                         {3, 1, 96, 1, 0},
                                         {6, 2, 10, 500, 7, kPairs},
                                         {1, 1, 128, 410, 4, kPairs},
                                         {3, 1, 96, 130, 2, kPairs},
                                         {2, 2, 80, 97, 3, kPairs},
                                         {4, 1, 64, 70, 2, ElementType::float16},
                                         {2, 1, 10, 150, 3, ElementType::float16},
                                         {2, 1, 7, 90, 3, kPairs}}) {
    CAPTURE(c.query_heads, c.d, c.prompt, element_name(c.type));
    const auto trace = random_trace({.query_heads = c.query_heads,
                                     .kv_heads = c.kv_heads,
                                     .d = c.d,
                                     .prompt = c.prompt,
                                     .later = c.later,
                                     .type = c.type});
    reference::KnownAttention known(trace->layer);
    for (auto& [name, backend] : backends) {
      CAPTURE(name);
      const auto all = request_for(trace->info, c.prompt + c.later, stride_for(name));
      CHECK(largest_error(*backend, known, all) < kSumTolerance);
      const auto some = request_for(trace->info, std::max<int64_t>(1, c.prompt / 2), 3);
      CHECK(largest_error(*backend, known, some) < kSumTolerance);
      const auto none = request_for(trace->info, 0, 3);
      CHECK(largest_error(*backend, known, none) == 0);
    }
  }
}

TEST_CASE("how loops are cut changes no more than rounding of sums", "[backend][sums]") {
  const RandomTraceShape shape{.prompt = 450, .type = ElementType::bfloat16};
  const auto trace = random_trace(shape);
  const auto request = request_for(trace->info, shape.prompt, 2);
  reference::KnownAttention known(trace->layer);
  for (const std::string& isa : instruction_sets())
    for (const auto& [name, shapes] : all_shapes()) {
      CAPTURE(isa, name);
      const ForcedIsa forced(isa);
      CHECK(largest_error(*make_cpu_backend(shapes), known, request) < kSumTolerance);
    }
}

TEST_CASE("sums of all terms agree with float64 and do not depend on company", "[backend][sums]") {
  struct Case {
    int query_heads, kv_heads;
    int64_t prompt, later;
    ElementType type;
  };
  const auto backends = all_backends();
  for (const Case& c : std::vector<Case>{{4, 2, 450, 6, ElementType::float32},
                                         {6, 2, 111, 3, ElementType::bfloat16},
                                         {3, 3, 70, 2, ElementType::float16},
                                         {16, 1, 40, 0, ElementType::float32}}) {
    CAPTURE(c.query_heads, c.prompt);
    const auto trace = random_trace({.query_heads = c.query_heads,
                                     .kv_heads = c.kv_heads,
                                     .prompt = c.prompt,
                                     .later = c.later,
                                     .type = c.type,
                                     .sink = c.kv_heads == 2});
    reference::KnownAttention known(trace->layer);
    for (auto& [name, backend] : backends) {
      CAPTURE(name);
      check_all_terms(*backend, known,
                      request_for(trace->info, c.prompt, name == "cuda on the host" ? 7 : 1));
    }
  }
}

TEST_CASE("sums of attention honour softcap, sink and huge logits", "[backend][sums]") {
  const auto backends = all_backends();
  for (const double softcap : {0.0, 5.0})
    for (const bool sink : {false, true})
      for (const double spread : {0.01, 8.0, 60.0}) {
        CAPTURE(softcap, sink, spread);
        const auto trace = random_trace(
            {.prompt = 800,
             .type = sink ? ElementType::bfloat16 : ElementType::float32,
             .logit_spread = spread,
             .softcap = softcap,
             .sink = sink});
        reference::KnownAttention known(trace->layer);
        for (auto& [name, backend] : backends) {
          CAPTURE(name);
          // A logit of size 200 has an error of 1e-5 in float32, and so has its exponential. A cap
          // takes most of it away; tensor cores, whose sums are cut off, start with twice as much.
          const bool tensor_cores = name.starts_with("cuda");
          const double capped = tensor_cores ? 4 * kSumTolerance : kSumTolerance;
          const double tolerance = spread <= 10 ? kSumTolerance : softcap > 0 ? capped : 2e-4;
          const auto request = request_for(trace->info, 800, name == "cuda on the host" ? 45 : 5);
          CHECK(largest_error(*backend, known, request) < tolerance);
        }
      }
}

TEST_CASE("sums of attention do not depend on the number of threads", "[backend][sums]") {
  RandomTraceShape shape;
  shape.prompt = 700;
  const auto trace = random_trace(shape);
  const auto request = with_all_terms(request_for(trace->info, 700, 1), trace->info);
  for (auto& [name, backend] : all_backends()) {
    if (name == "cuda on the host") continue;  // has one thread
    std::vector<std::vector<double>> seen;
    for (const int count : {1, 2, 5}) {
      const ForcedThreads forced(count);
      seen.emplace_back();
      for (const Table<double>& sums : backend->attention_sums(trace->layer, request))
        seen.back().insert(seen.back().end(), sums.values().begin(), sums.values().end());
    }
    CAPTURE(name);
    CHECK(seen[0] == seen[1]);
    CHECK(seen[0] == seen[2]);
  }
}

TEST_CASE("products in the metric of W_O agree with float64", "[backend][metric]") {
  const auto backends = all_backends();
  for (const int64_t dv : {7, 64, 130})
    for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
      CAPTURE(dv);
      const auto trace = metric_trace(dv, type);
      const LayerTrace& layer = trace->layer;
      const Range entries{3, 295};
      const size_t width = static_cast<size_t>(dv), count = static_cast<size_t>(entries.size());
      std::vector<double> y;
      for (uint64_t i = 0; i < 8 * width; ++i) y.push_back(normal(3, 5, i));
      struct Want {
        size_t at;
        std::vector<double> v;
        double form, size, own_form;
      };
      std::vector<Want> wanted;
      for (size_t at = 0; at < count; at += 17) {
        const auto v = reference::value(layer, 4, entries.begin + static_cast<int64_t>(at));
        const auto a = reference::project(layer, 4, v), b = reference::project(layer, 5, v);
        const double form = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
        wanted.push_back(
            {at, v, form, reference::l2(a) * reference::l2(b), std::pow(reference::l2(b), 2)});
      }
      for (auto& [name, backend] : backends) {
        CAPTURE(name);
        std::vector<double> g(width * width), forms(count), products(8 * count);
        std::vector<double> own_g(width * width), own_forms(count);
        const std::vector<HeadPair> pairs = {{4, 5, g.data(), forms.data()},
                                             {5, 5, own_g.data(), own_forms.data()}};
        backend->output_metrics(layer, pairs, entries);
        backend->value_products(layer, 1, y.data(), 8, entries, products.data());
        double worst = 0;
        for (const Want& want : wanted) {
          worst = std::max(worst, std::fabs(forms[want.at] - want.form) / want.size);
          worst = std::max(worst, std::fabs(own_forms[want.at] / want.own_form - 1));
          for (size_t r = 0; r < 8; ++r) {
            double product = 0;
            for (size_t c = 0; c < width; ++c) product += y[r * width + c] * want.v[c];
            worst = std::max(
                worst, std::fabs(products[r * count + want.at] - product) / reference::l2(want.v));
          }
        }
        CHECK(worst < kMetricTolerance);
      }
    }
}

}  // namespace kvsim::test
