#include "bench/forms.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "bench/gemm.hpp"
#include "sim/backend/cpu/kernels.hpp"
#include "sim/backend/cpu/verbs.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim::bench {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void prepare(const Problem& p, Outputs* outputs) {
  if (outputs == nullptr) return;
  outputs->z.assign(static_cast<size_t>((p.sets() + 1) * p.rows() * p.shape.d), 0.0f);
  outputs->mass.assign(static_cast<size_t>(p.sets() * p.rows()), 0.0f);
}

// ---- fused --------------------------------------------------------------------------------------

void copy_block(const Problem& p, const ReplayBlock& block, Outputs& out) {
  const int64_t d = p.shape.d;
  std::vector<std::vector<float>> deltas(block.delta.size(), std::vector<float>(block.z.size()));
  for (size_t set = 0; set < deltas.size(); ++set)
    p.backend->read_outputs(block.delta[set], static_cast<int64_t>(block.z.size()),
                            deltas[set].data());
  for (int64_t set = 0; set <= p.sets(); ++set)
    for (int64_t h = 0; h < p.shape.group; ++h)
      for (int64_t s = 0; s < block.steps; ++s) {
        const int64_t row = h * p.shape.steps + block.first_step + s;
        const size_t from = static_cast<size_t>((h * block.steps + s) * d);
        const size_t to = static_cast<size_t>((set * p.rows() + row) * d);
        for (size_t j = 0; j < static_cast<size_t>(d); ++j)
          out.z[to + j] = block.z[from + j] +
                          (set < p.sets() ? deltas[static_cast<size_t>(set)][from + j] : 0.0f);
        if (set == p.sets()) continue;
        out.mass[static_cast<size_t>(set * p.rows() + row)] = static_cast<float>(
            block.kept_attention[static_cast<size_t>(set)](h, s) + block.later_attention(h, s));
      }
}

void fused(const Problem& p, Outputs* outputs) {
  prepare(p, outputs);
  p.backend->replay(p.layer, p.request, [&](const ReplayBlock& block) {
    if (outputs != nullptr) copy_block(p, block, *outputs);
  });
}

/// Column sums, as H2O wants them, of the later queries.
void sums(const Problem& p, Outputs* outputs) {
  AttentionSumRequest request;
  request.columns = p.shape.n;
  for (int64_t row = 0; row < p.shape.steps; ++row) request.rows.push_back(row);
  request.sums.push_back(
      {AttentionSum::Of::attention, std::vector<double>(request.rows.size(), 1.0), {}});
  std::vector<Table<double>> result = p.backend->attention_sums(p.layer, request);
  if (outputs != nullptr) outputs->sums = std::move(result.front().values());
}

// ---- baselines ----------------------------------------------------------------------------------

/// Softmax of rows of scores[M][columns] in place, without the division. The last `steps` columns
/// are the later positions. sums[r] and tops[r] of every row.
void softmax(const Problem& p, float* scores, int64_t columns, double* sums, float* tops) {
  const Kernels& kernels = choose_kernels();
  parallel_for(p.rows(), [&](int64_t r) {
    float* const s = scores + r * columns;
    const int64_t hidden = p.keys() - p.visible(r);
    std::fill(s + columns - hidden, s + columns, kMinusInfinity);
    tops[r] = kernels.maximum(s, columns);
    sums[r] = kernels.exp_row(s, columns, tops[r], s);
  });
}

/// Divides the outputs of one set and notes the shares.
void finish_set(const Problem& p, int64_t set, float* z, const double* sums, const float* tops,
                const std::vector<double>& full_sums, const std::vector<float>& full_tops,
                Outputs* outputs) {
  const int64_t d = p.shape.d;
  parallel_for(p.rows(), [&](int64_t r) {
    choose_kernels().scale_row(z + r * d, d, static_cast<float>(1.0 / sums[r]));
  });
  if (outputs == nullptr) return;
  std::memcpy(outputs->z.data() + set * p.rows() * d, z,
              static_cast<size_t>(p.rows() * d) * sizeof(float));
  if (set == p.sets()) return;
  for (size_t r = 0; r < full_sums.size(); ++r)
    outputs->mass[static_cast<size_t>(set) * full_sums.size() + r] = static_cast<float>(
        sums[r] * std::exp(static_cast<double>(tops[r] - full_tops[r])) / full_sums[r]);
}

/// Memory of the baselines, kept from run to run.
struct Room {
  Scratch<float> scores, weights, z, k, v;
};
Room& room() {
  static Room memory;
  return memory;
}

void mask(const Problem& p, Outputs* outputs) {
  prepare(p, outputs);
  const int64_t m = p.rows(), keys = p.keys(), d = p.shape.d, n = p.shape.n;
  float* const scores = room().scores.reserve(m * keys);
  float* const weights = room().weights.reserve(m * keys);
  float* const z = room().z.reserve(m * d);
  gemm(m, keys, d, p.q.data(), p.k.data(), true, scores);
  std::vector<double> full_sums(static_cast<size_t>(m)), sums(full_sums);
  std::vector<float> full_tops(static_cast<size_t>(m)), tops(full_tops);
  std::memcpy(weights, scores, static_cast<size_t>(m * keys) * sizeof(float));
  softmax(p, weights, keys, full_sums.data(), full_tops.data());
  gemm(m, d, keys, weights, p.v.data(), false, z);
  finish_set(p, p.sets(), z, full_sums.data(), full_tops.data(), full_sums, full_tops, outputs);
  std::vector<float> bias(static_cast<size_t>(keys));
  for (int64_t set = 0; set < p.sets(); ++set) {
    const int64_t budgets = static_cast<int64_t>(p.kept.size());
    std::fill_n(bias.begin(), n, kMinusInfinity);
    for (int64_t i = 0; i < p.kept[static_cast<size_t>(set % budgets)]; ++i)
      bias[p.order(set / budgets)[static_cast<size_t>(i)]] = 0;
    parallel_for(m, [&](int64_t r) {
      for (int64_t i = 0; i < keys; ++i)
        weights[r * keys + i] = scores[r * keys + i] + bias[static_cast<size_t>(i)];
    });
    softmax(p, weights, keys, sums.data(), tops.data());
    gemm(m, d, keys, weights, p.v.data(), false, z);
    finish_set(p, set, z, sums.data(), tops.data(), full_sums, full_tops, outputs);
  }
}

void gather(const Problem& p, Outputs* outputs) {
  prepare(p, outputs);
  const int64_t m = p.rows(), d = p.shape.d, n = p.shape.n;
  float* const scores = room().scores.reserve(m * p.keys());
  float* const z = room().z.reserve(m * d);
  float* const k = room().k.reserve(p.keys() * d);
  float* const v = room().v.reserve(p.keys() * d);
  std::vector<double> full_sums(static_cast<size_t>(m)), sums(full_sums);
  std::vector<float> full_tops(static_cast<size_t>(m)), tops(full_tops);
  gemm(m, p.keys(), d, p.q.data(), p.k.data(), true, scores);
  softmax(p, scores, p.keys(), full_sums.data(), full_tops.data());
  gemm(m, d, p.keys(), scores, p.v.data(), false, z);
  finish_set(p, p.sets(), z, full_sums.data(), full_tops.data(), full_sums, full_tops, outputs);
  const int64_t budgets = static_cast<int64_t>(p.kept.size());
  for (int64_t set = 0; set < p.sets(); ++set) {
    const int64_t kept = p.kept[static_cast<size_t>(set % budgets)];
    std::vector<uint32_t> index(p.order(set / budgets).begin(),
                                p.order(set / budgets).begin() + kept);
    std::sort(index.begin(), index.end());
    for (int64_t i = 0; i < p.shape.steps; ++i) index.push_back(static_cast<uint32_t>(n + i));
    const int64_t columns = static_cast<int64_t>(index.size());
    parallel_for(columns, [&](int64_t i) {
      const int64_t key = index[static_cast<size_t>(i)];
      std::copy_n(p.k.data() + key * d, d, k + i * d);
      std::copy_n(p.v.data() + key * d, d, v + i * d);
    });
    gemm(m, columns, d, p.q.data(), k, true, scores);
    softmax(p, scores, columns, sums.data(), tops.data());
    gemm(m, d, columns, scores, v, false, z);
    finish_set(p, set, z, sums.data(), tops.data(), full_sums, full_tops, outputs);
  }
}

void floor(const Problem& p, Outputs*) {
  const int64_t m = p.rows(), d = p.shape.d;
  float* const scores = room().scores.reserve(m * p.keys());
  float* const z = room().z.reserve(m * d);
  gemm(m, p.shape.n, d, p.q.data(), p.k.data(), true, scores);
  gemm(m, d, p.shape.n, scores, p.v.data(), false, z);
  for (size_t policy = 0; policy < p.request.plans.size(); ++policy)
    gemm(m, d, p.kept.back(), scores, p.v.data(), false, z);
}

}  // namespace

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {{"fused", fused, true},
                                        {"sums", sums, true},
                                        {"gather", gather, true},
                                        {"mask", mask, true},
                                        {"floor", floor, false}};
  return all;
}

}  // namespace kvsim::bench
