#pragma once
#include <cstdint>
#include <vector>

namespace kvsim {

/// Order statistics of very many values >= 0 in little memory: bins are 2^-10 of their value wide,
/// from 2^-40 to 2^60, and know the sum of what they hold. What lies outside goes to the end bins.
class FineHistogram {
 public:
  FineHistogram();
  void add(double value);
  int64_t count() const { return count_; }
  /// Percentile p by linear interpolation between ranks; a bin stands for each of its values by
  /// their mean. NaN when nothing was added.
  double percentile(double p) const;
  /// Mean without the floor(count * share) lowest and highest values; NaN when nothing is left.
  double trimmed_mean(double share) const;

 private:
  double at_rank(int64_t rank) const;

  std::vector<int64_t> counts_;
  std::vector<double> sums_;
  int64_t count_ = 0;
};

}  // namespace kvsim
