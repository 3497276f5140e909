#include "analysis/summary.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvsim {
namespace {

std::vector<double> defined(std::span<const double> values) {
  std::vector<double> kept;
  kept.reserve(values.size());
  std::copy_if(values.begin(), values.end(), std::back_inserter(kept),
               [](double value) { return !std::isnan(value); });
  return kept;
}

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

}  // namespace

double mean(std::span<const double> values) {
  const std::vector<double> kept = defined(values);
  if (kept.empty()) return kUndefined;
  double sum = 0;
  for (const double value : kept) sum += value;
  return sum / static_cast<double>(kept.size());
}

double root_mean_square(std::span<const double> values) {
  std::vector<double> squares(values.begin(), values.end());
  for (double& value : squares) value *= value;
  return std::sqrt(mean(squares));
}

double minimum(std::span<const double> values) {
  const std::vector<double> kept = defined(values);
  return kept.empty() ? kUndefined : *std::min_element(kept.begin(), kept.end());
}

double maximum(std::span<const double> values) {
  const std::vector<double> kept = defined(values);
  return kept.empty() ? kUndefined : *std::max_element(kept.begin(), kept.end());
}

double percentile(std::span<const double> values, double p) {
  std::vector<double> kept = defined(values);
  if (kept.empty()) return kUndefined;
  const double rank = p / 100 * static_cast<double>(kept.size() - 1);
  const double whole = std::floor(rank), part = rank - whole;
  const auto at = kept.begin() + static_cast<int64_t>(whole);
  std::nth_element(kept.begin(), at, kept.end());
  const double below = *at;
  if (part == 0) return below;
  const double above = *std::min_element(at + 1, kept.end());
  // Written so that equal (also infinite) neighbours give themselves.
  return below == above ? below : below + part * (above - below);
}

}  // namespace kvsim
