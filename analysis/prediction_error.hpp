#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "sim/backend/layer_work.hpp"

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

/// How far a prediction of scores is from what comes (metrics.md 3): |s^_i(t) / s_i(t+d) - 1| over
/// all query heads, prompt entries and steps t with t and t+d stored.
struct PredictionError {
  double median = 0;
  double trimmed_mean = 0;   ///< without the lowest and the highest tenth
  double weighted_mean = 0;  ///< by attention at t+d
};

/// Quantity that is predicted: s = exp(logit), or s = A.
const std::vector<std::string>& predicted_scores();
/// Moving averages with five decays, the mean of all rows since n, of the last 32, and the last.
const std::vector<std::string>& score_predictors();

/// [score][predictor], flat. Predictors see the stored rows at positions >= n of the full cache.
/// Reads the attention once; medians and trimmed means come from a fine histogram, within 1e-3 of
/// their value. NaN when no two steps lie `horizon` apart.
std::vector<PredictionError> prediction_errors(LayerWork& work, int64_t horizon);

}  // namespace kvsim
