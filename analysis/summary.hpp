#pragma once
#include <span>
#include <vector>

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

}  // namespace kvsim
