#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvsim {

/// Statistics over classes, budgets and traces (metrics.md 6). Plain functions of numbers.

/// Average ranks, 1-based: equal values share the mean of their places.
std::vector<double> average_ranks(std::span<const double> values);

/// Pearson's correlation; NaN for fewer than 2 values or a constant series.
double pearson(std::span<const double> x, std::span<const double> y);

/// Spearman: Pearson of average ranks.
double spearman(std::span<const double> x, std::span<const double> y);

struct Interval {
  double low = 0;
  double high = 0;
};
using Statistic = std::function<double(std::span<const double>)>;

/// 95 % bootstrap interval (percentiles 2.5 and 97.5 of 1000 resamples) of a statistic of one value
/// per trace.
Interval bootstrap_traces(std::span<const double> values, uint64_t seed,
                          const Statistic& statistic);

/// The same over the steps of one trace: moving blocks of min(16, T) steps.
Interval bootstrap_steps(std::span<const double> values, uint64_t seed, const Statistic& statistic);

}  // namespace kvsim
