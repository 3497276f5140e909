#pragma once
#include <vector>

#include "sim/stages/aggregate/aggregate.hpp"

namespace kvsim {

/// sum_j weight[j] * row_j, for the aggregates whose weights are known beforehand.
class WeightedSum : public Aggregation {
 public:
  WeightedSum(std::vector<double> weights, int64_t columns)
      : weights_(std::move(weights)), sums_(static_cast<size_t>(columns), 0.0) {}

  void add(int64_t j, int64_t first, std::span<const double> part) override {
    const double w = weights_[static_cast<size_t>(j)];
    if (w == 0) return;  // an infinite score times no weight is no score
    double* const sums = sums_.data() + first;
    for (size_t c = 0; c < part.size(); ++c) sums[c] += w * part[c];
  }
  std::span<const double> weights() const override { return weights_; }
  void add_sum(std::span<const double> sum, std::span<const int64_t> /*visible*/) override {
    for (size_t c = 0; c < sum.size(); ++c) sums_[c] += sum[c];
  }
  void finish(std::span<double> out) override {
    for (size_t c = 0; c < out.size(); ++c) out[c] = sums_[c];
  }

 private:
  std::vector<double> weights_;
  std::vector<double> sums_;
};

}  // namespace kvsim
