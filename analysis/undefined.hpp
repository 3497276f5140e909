#pragma once
#include <limits>

namespace kvsim {

/// What a statistic of nothing is: NaN, which results hold as a missing value.
inline constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

}  // namespace kvsim
