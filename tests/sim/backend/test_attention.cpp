#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "tests/reference/known_attention.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {
namespace {

// Relative error of one A: that of its float32 logit (size 5..20) and of the sum.
constexpr double kWeightTolerance = 1e-5;
// Absolute error of a float32 logit of size 5..20, and so of the log-sum-exp.
constexpr double kLogitTolerance = 1e-5;
constexpr double kSmallest = 1e-30;  // smaller weights may be 0

/// `outputs`: the tolerance of outputs, 0 if there are none.
void check_row(reference::KnownAttention& known, const AttentionBlock& block, int head, int64_t r,
               int64_t row, bool logits, double outputs) {
  const int query_head = block.kv_head * block.heads + head;
  const auto& [expected, full] = known.at(query_head, row);
  double worst = 0, worst_logit = 0;
  for (int64_t i = 0; i < block.columns; ++i) {
    const double want = full.weight[static_cast<size_t>(i)];
    const double got = static_cast<double>(block.attention_row(head, r)[i]);
    if (std::isinf(expected[static_cast<size_t>(i)]) && got != 0.0) worst = 1;
    if (want > kSmallest) worst = std::max(worst, std::fabs(got / want - 1));
    if (!logits) continue;
    const double logit = static_cast<double>(block.logit_row(head, r)[i]);
    if (logit != expected[static_cast<size_t>(i)])  // both may be -inf
      worst_logit = std::max(worst_logit, std::fabs(logit - expected[static_cast<size_t>(i)]));
  }
  CHECK(worst < kWeightTolerance);
  CHECK(worst_logit < kLogitTolerance);
  CHECK(block.log_sum_exp[static_cast<size_t>(head * block.rows + r)] ==
        Approx(full.log_sum_exp).margin(kLogitTolerance));
  if (outputs == 0) return;
  std::vector<double> z = known.output_at(query_head, row);
  const double size = reference::l2(z);
  for (size_t c = 0; c < z.size(); ++c)
    z[c] -= static_cast<double>(
        block.outputs[static_cast<size_t>(head * block.rows + r) * z.size() + c]);
  CHECK(reference::l2(z) <= outputs * size);
}

void check(Backend& backend, reference::KnownAttention& known, const std::vector<int64_t>& rows,
           int64_t columns, bool logits, bool outputs) {
  const LayerTrace& layer = known.layer();
  for (int kv_head = 0; kv_head < layer.info->num_kv_heads; ++kv_head) {
    AttentionRequest request;
    request.kv_head = kv_head;
    request.rows = rows;
    request.columns = columns;
    request.logits = logits;
    request.outputs = outputs;
    AttentionBlock block;
    backend.attention(layer, request, block);
    REQUIRE(block.rows == static_cast<int64_t>(rows.size()));
    REQUIRE(block.heads == layer.info->group_size());
    CHECK(block.logits.empty() == !logits);
    CHECK(block.outputs.empty() == !outputs);
    for (int head = 0; head < block.heads; ++head)
      for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t row = rows[static_cast<size_t>(r)];
        CHECK(block.positions[static_cast<size_t>(r)] ==
              layer.info->query_position[static_cast<size_t>(row)]);
        check_row(known, block, head, r, row, logits,
                  outputs ? output_tolerance(backend, layer) : 0);
      }
  }
}

std::vector<int64_t> all_rows(const TraceInfo& info) {
  std::vector<int64_t> rows(info.query_position.size());
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return rows;
}

}  // namespace

TEST_CASE("attention rows agree with float64 for every shape of heads", "[backend][attention]") {
  struct Case {
    int query_heads, kv_heads;
    int64_t d, dv, prompt, later;
    ElementType type = ElementType::float32;
  };
  const auto backends = all_backends();
  for (const Case& c : std::vector<Case>{{1, 1, 64, 64, 33, 5},
                                         {6, 2, 10, 7, 100, 7},
                                         {6, 2, 10, 7, 100, 7, ElementType::bfloat16},
                                         {16, 1, 80, 96, 40, 3},
                                         {1, 1, 128, 16, 270, 4, ElementType::bfloat16},
                                         {8, 2, 256, 20, 10, 0},
                                         {2, 1, 9, 12, 30, 4, ElementType::bfloat16},
                                         {4, 1, 64, 80, 33, 5, ElementType::bfloat16},
                                         {3, 3, 96, 96, 50, 2, ElementType::bfloat16},
                                         {4, 2, 80, 64, 41, 3, ElementType::bfloat16},
                                         {2, 1, 128, 128, 40, 4, ElementType::float16},
                                         {6, 2, 10, 7, 100, 7, ElementType::float16},
                                         {3, 1, 96, 96, 1, 0}}) {
    CAPTURE(c.query_heads, c.d, c.dv, c.prompt, element_name(c.type));
    const auto trace = random_trace({.query_heads = c.query_heads,
                                     .kv_heads = c.kv_heads,
                                     .d = c.d,
                                     .dv = c.dv,
                                     .prompt = c.prompt,
                                     .later = c.later,
                                     .type = c.type});
    reference::KnownAttention known(trace->layer);
    for (auto& [name, backend] : backends) {
      CAPTURE(name);
      check(*backend, known, all_rows(trace->info), c.prompt, true, true);
      check(*backend, known, all_rows(trace->info), c.prompt + c.later, false, false);
    }
  }
}

TEST_CASE("a sink far above all logits leaves no weight and is the whole sum",
          "[backend][attention]") {
  const auto trace = random_trace(
      {.query_heads = 2, .kv_heads = 1, .prompt = 20, .later = 3, .sink = true});
  trace->layer.attention_sink = {2000.0f, 800.0f};  // exp() of neither is a number
  AttentionRequest request;
  request.rows = {0, 5, 22};
  request.columns = 23;
  request.outputs = true;
  for (auto& [name, backend] : all_backends()) {
    CAPTURE(name);
    AttentionBlock block;
    backend->attention(trace->layer, request, block);
    for (size_t at = 0; at < block.log_sum_exp.size(); ++at)
      CHECK(block.log_sum_exp[at] == Approx(at < 3 ? 2000 : 800));
    for (const float a : block.attention) CHECK(a == 0);
    for (const float z : block.outputs) CHECK(z == 0);
  }
}

TEST_CASE("attention honours softcap, window and sink", "[backend][attention]") {
  const auto backends = all_backends();
  for (const double softcap : {0.0, 3.0, 30.0})
    for (const int64_t window : {0, 1, 17, 400})
      for (const bool sink : {false, true}) {
        CAPTURE(softcap, window, sink);
        RandomTraceShape shape;
        shape.prompt = 290;
        shape.type = !sink         ? ElementType::float32
                     : softcap > 5 ? ElementType::float16
                                   : ElementType::bfloat16;
        shape.softcap = softcap;
        shape.window = window;
        shape.sink = sink;
        const auto trace = random_trace(shape);
        reference::KnownAttention known(trace->layer);
        for (auto& [name, backend] : backends) {
          CAPTURE(name);
          check(*backend, known, {0, 5, 20, 255, 256, 257, 289, 298}, 290, true, true);
        }
      }
}

TEST_CASE("attention needs only the rows and columns asked for", "[backend][attention]") {
  const auto trace = random_trace({.queries = {3, 30, 39, 44, 48}, .type = ElementType::bfloat16});
  reference::KnownAttention known(trace->layer);
  for (auto& [name, backend] : all_backends()) {
    CAPTURE(name);
    check(*backend, known, {1, 2, 4}, 10, true, false);
    check(*backend, known, {2}, 1, false, true);
    check(*backend, known, {0, 4}, 40, false, false);
  }
}

TEST_CASE("the only visible entry has all the attention, and equal logits share it equally",
          "[backend][attention]") {
  for (auto& [name, backend] : all_backends()) {
    CAPTURE(name);
    RandomTraceShape shape{.prompt = 500, .logit_spread = 0};
    const auto equal = random_trace(shape);
    AttentionRequest request;
    request.rows = {0, 6, 497};
    request.columns = 500;
    AttentionBlock block;
    backend->attention(equal->layer, request, block);
    CHECK(block.attention_row(0, 0)[0] == 1.0f);
    for (int i = 0; i < 7; ++i) CHECK(block.attention_row(1, 1)[i] == 1.0f / 7);
    for (int i = 1; i < 498; ++i)
      CHECK(block.attention_row(0, 2)[i] == block.attention_row(0, 2)[0]);
    CHECK(block.attention_row(0, 2)[498] == 0.0f);
    shape.logit_spread = 5;
    const auto spread = random_trace(shape);
    backend->attention(spread->layer, request, block);
    CHECK(block.attention_row(0, 0)[0] == 1.0f);
    CHECK(block.attention_row(1, 0)[0] == 1.0f);
  }
}

TEST_CASE("attention stays right when the largest logit comes late", "[backend][attention]") {
  // Logits rise by 1 per key, so that the shift has to move many times. Integers: exact.
  const RandomTraceShape shape{.prompt = 1000, .queries = {700, 999, 1003}, .integers = true};
  const auto trace = random_trace(shape);
  LayerTrace& layer = trace->layer;
  for (int h = 0; h < shape.query_heads; ++h)
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t j = 0; j < shape.d; ++j) set_element(layer.q, h, row, j, j == 0 ? 4.0f : 0.0f);
  for (int h = 0; h < shape.kv_heads; ++h)
    for (int64_t i = 0; i < trace->info.total_len; ++i)
      set_element(layer.k, h, i, 0, static_cast<float>(i));
  reference::KnownAttention known(layer);
  for (auto& [name, backend] : all_backends()) {
    CAPTURE(name);
    check(*backend, known, {0, 1, 2}, 1000, true, true);
  }
}

TEST_CASE("attention gives the same bytes on 1, 2 and 8 threads", "[backend][attention]") {
  RandomTraceShape shape;
  shape.prompt = 400;
  const auto trace = random_trace(shape);
  AttentionRequest request;
  request.rows = all_rows(trace->info);
  request.columns = shape.prompt;
  request.outputs = true;
  for (auto& [name, backend] : all_backends()) {
    CAPTURE(name);
    std::vector<AttentionBlock> blocks(3);
    for (int i = 0; i < 3; ++i) {
      const ForcedThreads forced(i == 0 ? 1 : i == 1 ? 2 : 8);
      backend->attention(trace->layer, request, blocks[static_cast<size_t>(i)]);
    }
    for (const AttentionBlock& block : blocks) {
      CHECK(block.attention == blocks[0].attention);
      CHECK(block.outputs == blocks[0].outputs);
      CHECK(block.log_sum_exp == blocks[0].log_sum_exp);
    }
  }
}

}  // namespace kvsim::test
