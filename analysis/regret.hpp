#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/backend/layer_work.hpp"

namespace kvsim {

/// Contributions of entries to retained importance: gain[owner](t, i) is the importance of
/// entry i at step t, summed over the query heads that share the owner's set, divided by the
/// layer's denominator at t. Then rho_t(S) = base[t] + sum over owners and i in S of the gain.
struct ImportanceGains {
  std::vector<Table<float>> owners;  ///< each [T][n]
  std::vector<double> base;          ///< [T] share of entries that nobody may drop
};

/// Gains of one layer. `importance` is [Hq][>= n] with `stride` columns, `total` the denominator of
/// each step [T], `base` the undroppable share of it [T].
ImportanceGains importance_gains(LayerWork& work, const float* importance, int64_t stride,
                                 std::span<const double> total, std::span<const double> base,
                                 bool per_query_head);

/// Upper bound of the largest min_t rho_t over static sets of `budget` entries per owner, by 64
/// rounds of multiplicative weights over the steps (metrics.md 7).
double minmax_bound(const ImportanceGains& gains, int64_t budget);

}  // namespace kvsim
