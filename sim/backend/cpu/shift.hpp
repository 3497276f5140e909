#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

namespace kvsim {

/// The shift under the exponential of a row is its maximum when it was last raised; it is raised
/// when a score exceeds it by more than this. exp(20) times any number of keys is far from
/// overflow, and what is scaled down then weighs less than 2e-9 of the row, so the rounding of the
/// factor does not matter.
inline constexpr float kSlack = 20.0f;
/// A score that is not there, and the maximum of no scores.
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// A sink this far above all scores leaves them less than 1e-300, and exp() of more is infinite.
inline constexpr double kSinkAlone = 690.0;
/// exp(sink - shift), finite; 0 without a sink, whose logit is -inf.
inline double sink_mass(double sink, double shift) {
  return std::isinf(sink) ? 0 : std::exp(std::min(sink - shift, kSinkAlone));
}
/// ln of the sum of exponentials, which is `total` under `shift`, the sink's sink_mass() included.
inline double log_sum_with_sink(double shift, double total, double sink) {
  return sink - shift > kSinkAlone ? sink : shift + std::log(total);
}

}  // namespace kvsim
