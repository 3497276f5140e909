#pragma once
#include <span>
#include <vector>

#include "sim/core/array.hpp"

namespace kvsim {

/// A number per later step and outcome of a layer's replay: NaN where it was not seen.
class StepSeries {
 public:
  StepSeries() = default;
  StepSeries(size_t outcomes, int64_t steps);

  std::vector<double>& operator[](size_t outcome) { return series_[outcome]; }
  const std::vector<double>& operator[](size_t outcome) const { return series_[outcome]; }
  /// Part of one outcome's series, from the step `first` on.
  std::span<double> part(int outcome, int64_t first, int64_t steps);

 private:
  std::vector<std::vector<double>> series_;  ///< [outcome][T]
};

/// Sums over query heads of a table [Hq][steps].
std::vector<double> over_heads(const Table<double>& heads);

}  // namespace kvsim
