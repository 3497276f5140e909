#include "analysis/fine_histogram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "analysis/undefined.hpp"

namespace kvsim {
namespace {

constexpr int kMantissaBits = 10;
constexpr int kShift = 52 - kMantissaBits;
constexpr int64_t kLowest = int64_t{1023 - 40} << kMantissaBits;  // the bits of 2^-40
constexpr int64_t kHighest = int64_t{1023 + 60} << kMantissaBits;

/// Bits of a value >= 0 are in the order of the values.
size_t bin_of(double value) {
  const auto bits = static_cast<int64_t>(std::bit_cast<uint64_t>(value) >> kShift);
  return static_cast<size_t>(std::clamp(bits, kLowest, kHighest) - kLowest);
}

}  // namespace

FineHistogram::FineHistogram()
    : counts_(static_cast<size_t>(kHighest - kLowest) + 1), sums_(counts_.size(), 0.0) {}

void FineHistogram::add(double value) {
  const size_t bin = bin_of(value);
  ++counts_[bin];
  sums_[bin] += value;
  ++count_;
}

double FineHistogram::at_rank(int64_t rank) const {
  size_t bin = 0;
  for (int64_t below = counts_[0]; below <= rank; below += counts_[++bin]) {
  }
  return sums_[bin] / static_cast<double>(counts_[bin]);
}

double FineHistogram::percentile(double p) const {
  if (count_ == 0) return kUndefined;
  const double rank = p / 100 * static_cast<double>(count_ - 1);
  const double low = at_rank(static_cast<int64_t>(std::floor(rank)));
  const double high = at_rank(static_cast<int64_t>(std::ceil(rank)));
  return low + (rank - std::floor(rank)) * (high - low);
}

double FineHistogram::trimmed_mean(double share) const {
  const auto cut = static_cast<int64_t>(std::floor(static_cast<double>(count_) * share));
  const int64_t left = count_ - 2 * cut;
  if (left <= 0) return kUndefined;
  double sum = 0;
  int64_t below = 0;
  for (size_t bin = 0; bin < counts_.size(); ++bin) {
    const int64_t in_bin = counts_[bin];
    if (in_bin == 0) continue;
    const int64_t taken = std::min(below + in_bin, count_ - cut) - std::max(below, cut);
    if (taken > 0) sum += sums_[bin] * static_cast<double>(taken) / static_cast<double>(in_bin);
    below += in_bin;
  }
  return sum / static_cast<double>(left);
}

}  // namespace kvsim
