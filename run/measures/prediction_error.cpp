// How far predictions of scores are from what comes (metrics.md 3).
#include "analysis/prediction_error.hpp"

#include "run/measures/conditions.hpp"

namespace kvsim::measures::prediction_error {
namespace {

VariableValues scores(const RunShape& /*run*/) { return predicted_scores(); }
VariableValues predictors(const RunShape& /*run*/) { return score_predictors(); }

constexpr const char* kPrediction = "layer score predictor";
DeclareMeasure measure({.name = "prediction_error", .place = 590, .whole = true});
const MeasureVariable prediction_error_median = measure.variable(
    {.name = "prediction_error_median",
     .dims = kPrediction,
     .long_name = "error of predicted scores, median",
     .definition = "median of |s^(t) / s(t+d) - 1| over query heads, prompt entries and steps, d "
                   "= --horizon; from a histogram, within 1e-3"});
const MeasureVariable prediction_error_trimmed_mean = measure.variable(
    {.name = "prediction_error_trimmed_mean",
     .dims = kPrediction,
     .long_name = "error of predicted scores, trimmed mean",
     .definition = "mean without the lowest and the highest tenth; within 1e-3"});
const MeasureVariable prediction_error_weighted_mean = measure.variable(
    {.name = "prediction_error_weighted_mean",
     .dims = kPrediction,
     .long_name = "error of predicted scores, weighted mean",
     .definition = "mean weighted by A at t+d"});
const MeasureAxis axes[] = {
    {measure,
     {.name = "score",
      .type = VariableType::text,
      .long_name = "score that is predicted",
      .definition = "`exp-logit`: s = exp(logit); `attention`: s = A"},
     scores},
    {measure,
     {.name = "predictor",
      .type = VariableType::text,
      .long_name = "predictor of scores",
      .definition = "moving averages by decay (the past's weight), mean of all rows since n, of "
                    "the last 32, the last row"},
     predictors},
};

class PredictionErrors : public Measure {
 public:
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const auto errors = prediction_errors(layer.work, run().options.horizon);
    const size_t count = score_predictors().size();
    for (size_t x = 0; x < errors.size(); ++x) {
      const std::initializer_list<int64_t> at = {layer.index, static_cast<int64_t>(x / count),
                                                 static_cast<int64_t>(x % count)};
      results.set(prediction_error_median, at, errors[x].median);
      results.set(prediction_error_trimmed_mean, at, errors[x].trimmed_mean);
      results.set(prediction_error_weighted_mean, at, errors[x].weighted_mean);
    }
  }
};
const RegisterMeasure<PredictionErrors> registered(measure);

}  // namespace
}  // namespace kvsim::measures::prediction_error
