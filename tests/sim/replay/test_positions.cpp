#include <catch2/catch.hpp>
#include <cmath>

#include "sim/replay/slots.hpp"
#include "tests/support/random_trace.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

/// x rotated by `steps` positions, pair by pair, in float64.
std::vector<double> rotated(const Rotation& rope, std::vector<double> x, int64_t steps) {
  const size_t half = rope.inv_freq.size(), first = static_cast<size_t>(rope.first);
  for (size_t j = 0; j < half; ++j) {
    const size_t a = first + (rope.interleaved ? 2 * j : j);
    const size_t b = first + (rope.interleaved ? 2 * j + 1 : j + half);
    const double angle = static_cast<double>(steps) * rope.inv_freq[j];
    const double xa = x[a];
    const double xb = x[b];
    x[a] = xa * std::cos(angle) - xb * std::sin(angle);
    x[b] = xa * std::sin(angle) + xb * std::cos(angle);
  }
  return x;
}

std::vector<double> row_of(const Tensor& tensor, int64_t a, int64_t b) {
  std::vector<double> row;
  for (int64_t c = 0; c < tensor.dim(2); ++c) row.push_back(element(tensor, a, b, c));
  return row;
}

}  // namespace

TEST_CASE("with positions=cache keys and queries rotate to their slot numbers", "[replay]") {
  // one query head each
  const auto trace = random_trace({.kv_heads = 4, .d = 8});
  trace->info.rope.inv_freq = {1, 0.3, 0.1, 0.03};
  trace->info.rope.interleaved = GENERATE(false, true);
  // This layer's own, of a part of a head, in the place of the trace's.
  if (const int64_t first = GENERATE(-1, 0, 3, 4); first >= 0)
    trace->info.layer_rope[trace->layer.layer] = {
        {0.7, 0.02}, trace->info.rope.interleaved, first, 1.3};
  const TraceInfo& info = trace->info;
  const Rotation& rope = info.rotation(trace->layer.layer);
  KeptSets kept;
  kept.owners.assign(4, {3, 4, 17, 30});
  kept.owners[1] = {0};

  const auto backend = make_cpu_backend();
  LayerWork work(trace->layer, *backend);
  LayerSlots slots = slots_of(work, kept);
  rotate_to_cache_positions(work, kept, slots);
  const int64_t steps = info.steps();
  std::vector<float> z_hat(static_cast<size_t>(info.num_query_heads * steps * work.value_dim()));
  SlotAttention(work).run(slots, 0, steps, z_hat.data());

  for (int head = 0; head < info.num_query_heads; ++head) {
    const auto& entries = kept.owners[static_cast<size_t>(head)];
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t row = info.first_step() + s;
      const int64_t t = info.query_position[static_cast<size_t>(row)];
      std::vector<int64_t> present(entries.begin(), entries.end());
      for (int64_t i = info.prompt_len; i <= t; ++i) present.push_back(i);
      const auto query = rotated(rope, row_of(trace->layer.q, head, row),
                                 static_cast<int64_t>(present.size()) - 1 - t);
      double sum = 0;
      std::vector<double> output(static_cast<size_t>(work.value_dim()), 0.0);
      for (size_t r = 0; r < present.size(); ++r) {
        const auto key = rotated(rope, row_of(trace->layer.k, head, present[r]),
                                 static_cast<int64_t>(r) - present[r]);
        double logit = 0;
        for (size_t c = 0; c < key.size(); ++c) logit += query[c] * key[c];
        const double weight = std::exp(trace->layer.scale * logit);
        sum += weight;
        const auto value = row_of(trace->layer.v, head, present[r]);
        for (size_t c = 0; c < output.size(); ++c) output[c] += weight * value[c];
      }
      for (size_t c = 0; c < output.size(); ++c) {
        const auto at = static_cast<size_t>((head * steps + s) * work.value_dim()) + c;
        CHECK(z_hat[at] == Approx(output[c] / sum).margin(2e-5));
      }
    }
  }
}
