#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "sim/backend/layer_work.hpp"

namespace kvsim {

/// How far a prediction of scores is from what comes (metrics.md 3): |s^_i(t) / s_i(t+d) - 1| over
/// all query heads, prompt entries and steps t with t and t+d stored.
struct PredictionError {
  double median = 0;
  double trimmed_mean = 0;   ///< without the lowest and the highest tenth
  double weighted_mean = 0;  ///< by attention at t+d
};

/// What is predicted: s = exp(logit), or s = A.
const std::vector<std::string>& predicted_scores();
/// Moving averages with five decays, the mean of all rows since n, of the last 32, and the last.
const std::vector<std::string>& score_predictors();

/// [score][predictor], flat. Predictors see the stored rows at positions >= n of the full cache.
/// Reads the attention once; medians and trimmed means come from a fine histogram, within 1e-3 of
/// their value. NaN when no two steps lie `horizon` apart.
std::vector<PredictionError> prediction_errors(LayerWork& work, int64_t horizon);

}  // namespace kvsim
