#pragma once
#include <limits>

namespace kvsim {

/// The shift under the exponential of a row is its maximum when it was last raised; it is raised
/// when a score exceeds it by more than this. exp(20) times any number of keys is far from
/// overflow, and what is scaled down then weighs less than 2e-9 of the row, so the rounding of the
/// factor does not matter.
inline constexpr float kSlack = 20.0f;
/// A score that is not there, and the maximum of no scores.
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace kvsim
