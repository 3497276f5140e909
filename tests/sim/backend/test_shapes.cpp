#include <catch2/catch.hpp>
#include <cmath>

#include "tests/reference/reference.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {
namespace {

/// A set of one query head at one step as float64 has it.
struct ExpectedSet {
  double share = 0;
  std::vector<double> z;
};

ExpectedSet expected_set(const LayerTrace& layer, const KeptChain& chain, int64_t end, int head,
                         int64_t step) {
  const auto logits = reference::logits(layer, head, layer.info->first_step() + step);
  const auto full = reference::attention(layer, head, logits).weight;
  std::vector<bool> present(logits.size(), true);
  std::fill_n(present.begin(), layer.info->prompt_len, false);
  ExpectedSet expected;
  for (int64_t i = 0; i < end; ++i) {
    present[chain.order[static_cast<size_t>(i)]] = true;
    expected.share += full[chain.order[static_cast<size_t>(i)]];
  }
  expected.z = reference::output(layer, head,
                                 reference::attention(layer, head, logits, present).weight);
  return expected;
}

/// Every entry once, in an order that jumps; two sets.
ReplayPlan jumping_plan(const TraceInfo& info) {
  ReplayPlan plan;
  for (int owner = 0; owner < info.num_kv_heads; ++owner) {
    KeptChain chain{.order = {}, .end = {info.prompt_len / 7, info.prompt_len / 2}};
    for (int64_t i = 0; i < info.prompt_len; ++i)
      chain.order.push_back(static_cast<uint32_t>((i * 37 + owner) % info.prompt_len));
    plan.owners.push_back(chain);
  }
  return plan;
}

}  // namespace

TEST_CASE("how loops are cut changes no more than rounding", "[backend][replay]") {
  const RandomTraceShape shape{
      .query_heads = 6, .prompt = 300, .later = 30, .type = ElementType::bfloat16};
  const auto trace = random_trace(shape);
  const LayerTrace& layer = trace->layer;
  const int64_t steps = trace->info.steps();
  ReplayRequest request;
  request.plans.push_back(jumping_plan(trace->info));
  std::vector<ExpectedSet> expected;  // [heads][steps][sets]
  for (int head = 0; head < shape.query_heads; ++head)
    for (int64_t step = 0; step < steps; ++step) {
      const KeptChain& chain =
          request.plans[0].owners[static_cast<size_t>(head / trace->info.group_size())];
      for (const int64_t end : chain.end)
        expected.push_back(expected_set(layer, chain, end, head, step));
    }
  for (const std::string& isa : instruction_sets())
    for (const auto& [name, shapes] : all_shapes()) {
      CAPTURE(isa, name);
      const ForcedIsa forced(isa);
      const auto backend = make_cpu_backend(shapes);
      double worst_share = 0, worst_output = 0;
      int64_t compared = 0;
      backend->replay(layer, request, [&](const ReplayBlock& block) {
        for (int64_t row = 0; row < shape.query_heads * block.steps; ++row)
          for (size_t set = 0; set < 2; ++set) {
            const int64_t head = row / block.steps, s = row % block.steps;
            const auto at = static_cast<size_t>(head * steps + block.first_step + s) * 2 + set;
            worst_share = std::max(
                worst_share,
                std::fabs(block.kept_attention[set](head, s) / expected[at].share - 1));
            std::vector<double> difference;
            for (int64_t c = 0; c < shape.dv; ++c) {
              const auto x = static_cast<size_t>(row * shape.dv + c);
              difference.push_back(static_cast<double>(block.z[x]) +
                                   static_cast<double>(block.delta[set][x]) -
                                   expected[at].z[static_cast<size_t>(c)]);
            }
            worst_output = std::max(worst_output,
                                    reference::l2(difference) / reference::l2(expected[at].z));
            ++compared;
          }
      });
      CHECK(compared == std::ssize(expected));
      CHECK(worst_share < kMassTolerance);
      CHECK(worst_output <
            2 * output_tolerance(*backend, layer));  // z, and z + delta: rounded twice
    }
}

}  // namespace kvsim::test
