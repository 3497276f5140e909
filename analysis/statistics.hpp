#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim {

/// Summaries over steps (metrics.md 0). NaN marks "undefined" and is left out; a summary of nothing
/// is NaN. Sums are float64 in the order of the values.
std::vector<double> defined(std::span<const double> values);  ///< without NaN
double mean(std::span<const double> values);
double minimum(std::span<const double> values);
double maximum(std::span<const double> values);
double root_mean_square(std::span<const double> values);

/// Percentile p in [0, 100]: rank p/100 * (k-1) of the k sorted values, linear between neighbours.
double percentile(std::span<const double> values, double p);

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

/// Where intervals are computed, so that they stay where numbers can be: errors and losses on
/// logarithms, shares of 1 on the arcsine of their square root, counts on their square root.
enum class Scale : uint8_t { plain, log, share, count };

/// A number with its 95 % interval. `chance`: how likely one as far from no difference (0; 1 of a
/// ratio) is where there is none, two-sided; NaN where it is not asked.
struct Bounded {
  double value = 0;
  Interval interval;
  double chance = 0;
};

/// Quantile of Student's distribution with `freedom` > 0 degrees, share in (0, 1).
double student_quantile(double freedom, double share);

/// Length, in steps, of the blocks that are drawn from a series: Politis and White (2004) for the
/// circular bootstrap, with the correction of Patton, Politis and White (2009), rounded up. 1 for
/// fewer than 3 values and for constant ones.
int64_t block_length(std::span<const double> series);

/// Standard error of the mean of a series, by circular blocks of `block` steps, all starts alike.
double block_error(std::span<const double> series, int64_t block);

/// Units that repeat: the steps of one trace, or traces.
enum class Units : uint8_t { steps, traces };

/// Mean over steps or traces of numbers of which none is NaN, with Student's interval (metrics.md
/// 6): over n traces with n - 1 degrees of freedom (geometric mean on logarithms), over T steps in
/// blocks of c with T/c - 1. NaN without numbers; an interval of NaN for a single one.
Bounded estimate(std::span<const double> values, Units units, Scale scale);

/// Of two series over the same units how the first differs from the second: on logarithms the ratio
/// of their means (of one trace), or the geometric mean of ratios (over traces), else the
/// difference of means.
Bounded paired(std::span<const double> values, std::span<const double> others, Units units,
               Scale scale);

/// Calls `seen` with the numbers of the units of 1000 resamples: traces drawn with replacement, or
/// circular blocks of `block` steps, cut to their count. u(seed, a, b, 1) draws (metrics.md 6).
void resample(int64_t count, Units units, int64_t block, uint64_t seed,
              const std::function<void(std::span<const int64_t>)>& seen);

}  // namespace kvsim
