#include "analysis/outliers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvsim {

double outlier_count(std::span<const double> retained_importance, double threshold) {
  const auto undefined = [](double value) { return std::isnan(value); };
  if (std::all_of(retained_importance.begin(), retained_importance.end(), undefined)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return static_cast<double>(std::count_if(retained_importance.begin(), retained_importance.end(),
                                           [&](double value) { return value < threshold; }));
}

}  // namespace kvsim
