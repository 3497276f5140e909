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

/// Quantile of Student's distribution with `freedom` >= 1 degrees, share in (0.5, 1).
double student_quantile(int64_t freedom, double share);

/// 95 % interval of the mean of one value per trace (Student's t); NaN for fewer than 2 values.
/// Traces are few: resampling them would cover 80 to 90 % (metrics.md 6).
Interval mean_interval(std::span<const double> values);

/// Calls `seen` with 1000 resamples of the values, drawn with replacement.
void resample_traces(std::span<const double> values, uint64_t seed,
                     const std::function<void(std::span<const double>)>& seen);

/// 95 % bootstrap interval (percentiles 2.5 and 97.5 of 1000 resamples) of a statistic over the
/// steps of one trace: moving blocks of min(16, T) steps.
Interval bootstrap_steps(std::span<const double> values, uint64_t seed, const Statistic& statistic);

/// The same of the mean of values of which none is NaN, from running sums.
Interval bootstrap_mean(std::span<const double> values, uint64_t seed);

}  // namespace kvsim
