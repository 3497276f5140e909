#include "analysis/summary.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "analysis/undefined.hpp"
#include "sim/core/array.hpp"

namespace kvsim {
namespace {

constexpr int64_t kManyValues = int64_t{1} << 14;
constexpr int kBucketBits = 14;  // sign, exponent and two bits of the mantissa

/// Of many values those near rank `rank`: two passes without a branch on a value, where selection
/// mispredicts one for each. Returns the rank of the same value among those that stay; the one
/// after it stays, too.
int64_t keep_near(std::vector<double>& values, int64_t rank) {
  const auto bucket = [](double value) {
    return static_cast<size_t>(sortable_bits(value) >> (64 - kBucketBits));
  };
  std::vector<int64_t> count(size_t{1} << kBucketBits, 0);
  for (const double value : values) ++count[bucket(value)];
  size_t first = 0;
  int64_t before = 0;
  while (before + count[first] <= rank) before += count[first++];
  size_t last = first;
  const int64_t wanted = std::min(rank + 2, std::ssize(values));
  for (int64_t held = before + count[first]; held < wanted;) held += count[++last];
  std::erase_if(values, [&](double value) {
    const size_t own = bucket(value);
    return own < first || own > last;
  });
  return rank - before;
}

}  // namespace

std::vector<double> defined(std::span<const double> values) {
  std::vector<double> kept;
  kept.reserve(values.size());
  std::copy_if(values.begin(), values.end(), std::back_inserter(kept),
               [](double value) { return !std::isnan(value); });
  return kept;
}

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
  auto whole = static_cast<int64_t>(std::floor(rank));
  const double part = rank - static_cast<double>(whole);
  if (std::ssize(kept) > kManyValues) whole = keep_near(kept, whole);
  const auto at = kept.begin() + whole;
  std::nth_element(kept.begin(), at, kept.end());
  const double below = *at;
  if (part == 0) return below;
  const double above = *std::min_element(at + 1, kept.end());
  // Written so that equal (also infinite) neighbours give themselves.
  return below == above ? below : below + part * (above - below);
}

}  // namespace kvsim
