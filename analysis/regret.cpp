#include "analysis/regret.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

constexpr int kRounds = 64;
constexpr double kRate = 4;

/// Adds the share of one owner's best `budget` entries under the weights mu to rho[t].
void add_best_set(const Table<float>& gain, std::span<const double> mu, int64_t budget,
                  std::span<double> rho) {
  const int64_t entries = gain.columns();
  std::vector<double> score(static_cast<size_t>(entries));
  for (int64_t t = 0; t < gain.rows(); ++t) {
    const auto row = gain.row(t);
    const double weight = mu[static_cast<size_t>(t)];
    for (size_t i = 0; i < score.size(); ++i) score[i] += weight * static_cast<double>(row[i]);
  }
  std::vector<uint32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto best = order.begin() + std::min(budget, entries);
  std::nth_element(order.begin(), best, order.end(), [&](uint32_t a, uint32_t b) {
    return score[a] != score[b] ? score[a] > score[b] : a > b;
  });
  std::sort(order.begin(), best);
  for (int64_t t = 0; t < gain.rows(); ++t) {
    const auto row = gain.row(t);
    double sum = 0;
    for (auto i = order.begin(); i != best; ++i) sum += static_cast<double>(row[*i]);
    rho[static_cast<size_t>(t)] += sum;
  }
}

}  // namespace

ImportanceGains importance_gains(LayerWork& work, const float* importance, int64_t stride,
                                 std::span<const double> total, std::span<const double> base,
                                 bool per_query_head) {
  const int group = work.group_size();
  const auto steps = static_cast<int64_t>(total.size());
  ImportanceGains gains;
  gains.base.assign(base.begin(), base.end());
  gains.owners.assign(static_cast<size_t>(per_query_head ? work.query_heads() : work.kv_heads()),
                      Table<float>(steps, work.entries()));
  AttentionPass pass;
  pass.positions = std::span(work.info().query_position)
                       .subspan(static_cast<size_t>(work.info().first_step()), total.size());
  pass.look_ahead = true;
  for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t first_row) {
    for (int x = 0; x < group; ++x) {
      const int head = block.kv_head * group + x;
      Table<float>& gain = gains.owners[static_cast<size_t>(per_query_head ? head : block.kv_head)];
      const float* weight = importance + head * stride;
      for (int64_t r = 0; r < block.rows; ++r) {
        const double z = total[static_cast<size_t>(first_row + r)];
        const float* attention = block.attention_row(x, r);
        const auto out = gain.row(first_row + r);
        for (size_t i = 0; z != 0 && i < out.size(); ++i) {
          const double share = static_cast<double>(attention[i]) * static_cast<double>(weight[i]);
          out[i] += static_cast<float>(share / z);
        }
      }
    }
  });
  return gains;
}

double minmax_bound(const ImportanceGains& gains, int64_t budget) {
  const size_t steps = gains.base.size();
  std::vector<double> mu(steps, 1 / static_cast<double>(steps));
  double bound = std::numeric_limits<double>::infinity();
  Table<double> shares(static_cast<int64_t>(gains.owners.size()), static_cast<int64_t>(steps));
  for (int round = 0; round < kRounds; ++round) {
    parallel_for(shares.rows(), [&](int64_t owner) {
      const auto share = shares.row(owner);
      std::fill(share.begin(), share.end(), 0.0);
      add_best_set(gains.owners[static_cast<size_t>(owner)], mu, budget, share);
    });
    double value = 0;
    double sum = 0;
    for (size_t t = 0; t < steps; ++t) {
      double rho = gains.base[t];
      for (int64_t owner = 0; owner < shares.rows(); ++owner) {
        rho += shares(owner, static_cast<int64_t>(t));
      }
      value += mu[t] * rho;
      mu[t] *= std::exp(-kRate * rho);
      sum += mu[t];
    }
    for (double& weight : mu) weight /= sum;
    bound = std::min(bound, value);
  }
  return bound;
}

}  // namespace kvsim
