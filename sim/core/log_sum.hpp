#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace kvsim {

/// ln(e^a + e^b), without overflow; -inf stands for a term of 0.
inline double log_add(double a, double b) {
  const double larger = std::max(a, b);
  if (larger == -std::numeric_limits<double>::infinity()) return larger;
  return larger + std::log1p(std::exp(std::min(a, b) - larger));
}

/// ln of the sum of e^x over some x.
inline double log_sum_exp(std::span<const float> all) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const float x : all) top = std::max(top, static_cast<double>(x));
  if (top == -std::numeric_limits<double>::infinity()) return top;
  for (const float x : all) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

}  // namespace kvsim
