#pragma once
#include <limits>

namespace kvsim {

/// Statistic of nothing: NaN, which results hold as a missing value.
inline constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

}  // namespace kvsim
