#pragma once
#include <span>

namespace kvsim {

/// Number of steps whose retained importance is below the threshold (strictly; metrics.md 1), NaN
/// when no step has a value.
double outlier_count(std::span<const double> retained_importance, double threshold);

}  // namespace kvsim
