#include "run/measures/step_series.hpp"

#include <limits>

namespace kvsim {

StepSeries::StepSeries(size_t outcomes, int64_t steps)
    : series_(outcomes, std::vector<double>(static_cast<size_t>(steps),
                                            std::numeric_limits<double>::quiet_NaN())) {}

std::span<double> StepSeries::part(int outcome, int64_t first, int64_t steps) {
  return std::span(series_[static_cast<size_t>(outcome)])
      .subspan(static_cast<size_t>(first), static_cast<size_t>(steps));
}

std::vector<double> over_heads(const Table<double>& heads) {
  std::vector<double> sum(static_cast<size_t>(heads.columns()), 0.0);
  for (int64_t h = 0; h < heads.rows(); ++h) {
    const auto row = heads.row(h);
    for (size_t s = 0; s < sum.size(); ++s) sum[s] += row[s];
  }
  return sum;
}

}  // namespace kvsim
