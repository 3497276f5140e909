#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

namespace kvsim {

/// ln(e^a + e^b), without overflow; -inf stands for a term of 0.
inline double log_add(double a, double b) {
  const double larger = std::max(a, b);
  if (larger == -std::numeric_limits<double>::infinity()) return larger;
  return larger + std::log1p(std::exp(std::min(a, b) - larger));
}

}  // namespace kvsim
