#pragma once
#include <span>

#include "sim/core/array.hpp"

namespace kvsim {

/// Share of a total that is retained; 1 when the total is 0, never outside [0, 1].
double retained_share(double kept, double total);

/// Retained importance (or attention, when the sums are of attention) of a block of steps, pooled
/// over query heads: out[s] = sum_h kept[h][s] / sum_h total[h][s]. metrics.md 1.
/// `kept` and `total` are [Hq][steps].
void retained_pooled(const Table<double>& kept, const Table<double>& total, std::span<double> out);

/// Ratio of one query head alone.
void retained_of_head(const Table<double>& kept, const Table<double>& total, int head,
                      std::span<double> out);

/// Number of steps whose retained importance is below the threshold (strictly; metrics.md 1), NaN
/// when no step has a value.
double outlier_count(std::span<const double> retained_importance, double threshold);

}  // namespace kvsim
