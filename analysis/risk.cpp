#include "analysis/risk.hpp"

#include <algorithm>
#include <cmath>

#include "analysis/statistics.hpp"
#include "analysis/summary.hpp"
#include "analysis/undefined.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

/// Share of places at which a < b.
double share_below(std::span<const double> a, std::span<const double> b) {
  if (a.empty()) return kUndefined;
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] < b[i];
  return static_cast<double>(count) / static_cast<double>(a.size());
}

}  // namespace

TrueRisk::TrueRisk(int kv_heads, int64_t entries, const float* importance, int64_t stride)
    : importance_(importance), stride_(stride), risk_(kv_heads, entries) {}

void TrueRisk::add(const AttentionBlock& block, int64_t) {
  constexpr int64_t kTile = 512;
  const auto risk = risk_.row(block.kv_head);
  const auto entries = static_cast<int64_t>(risk.size());
  parallel_for((entries + kTile - 1) / kTile, [&](int64_t tile) {
    const int64_t end = std::min(entries, (tile + 1) * kTile);
    for (int x = 0; x < block.heads; ++x) {
      const float* weight = importance_ + (block.kv_head * block.heads + x) * stride_;
      for (int64_t r = 0; r < block.rows; ++r) {
        const float* row = block.attention_row(x, r);
        for (int64_t i = tile * kTile; i < end; ++i) {
          double& largest = risk[static_cast<size_t>(i)];
          largest = std::max(largest, static_cast<double>(row[i]) * static_cast<double>(weight[i]));
        }
      }
    }
  });
}

RiskQuality risk_quality(std::span<const double> estimate, std::span<const double> risk,
                         std::span<const double> prior) {
  std::vector<double> ratios;
  for (size_t i = 0; i < risk.size(); ++i)
    if (estimate[i] > 0 || risk[i] > 0) ratios.push_back(std::log(estimate[i] / risk[i]));
  return {spearman(estimate, risk), percentile(ratios, 50), share_below(estimate, risk),
          prior.empty() ? kUndefined : share_below(risk, prior)};
}

}  // namespace kvsim
