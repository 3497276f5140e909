// How far predictions of scores are from what comes (metrics.md 3).
#include "analysis/prediction_error.hpp"

#include "run/measures/conditions.hpp"

namespace kvsim::measures::prediction_error {
namespace {

VariableValues scores(const RunShape& /*run*/) { return predicted_scores(); }
VariableValues predictors(const RunShape& /*run*/) { return score_predictors(); }

constexpr const char* kPrediction = "layer score predictor";
const DeclareMeasure measure(
    {.name = "prediction_error", .place = 590, .whole = true},
    {{"score", "score", "1", "score that is predicted",
      "`exp-logit`: s = exp(logit); `attention`: s = A", VariableType::text, Known{scores}},
     {"predictor", "predictor", "1", "predictor of scores",
      "moving averages by decay (the past's weight), mean of all rows since n, of the last 32, the "
      "last row",
      VariableType::text, Known{predictors}},
     {"prediction_error_median", kPrediction, "1", "error of predicted scores, median",
      "median of |s^(t) / s(t+d) - 1| over query heads, prompt entries and steps, d = --horizon; "
      "from a histogram, within 1e-3"},
     {"prediction_error_trimmed_mean", kPrediction, "1", "error of predicted scores, trimmed mean",
      "mean without the lowest and the highest tenth; within 1e-3"},
     {"prediction_error_weighted_mean", kPrediction, "1",
      "error of predicted scores, weighted mean", "mean weighted by A at t+d"}});

class PredictionErrors : public Measure {
 public:
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const auto errors = prediction_errors(layer.work, run().options.horizon);
    const size_t count = score_predictors().size();
    for (size_t x = 0; x < errors.size(); ++x) {
      const std::initializer_list<int64_t> at = {layer.index, static_cast<int64_t>(x / count),
                                                 static_cast<int64_t>(x % count)};
      results.set("prediction_error_median", at, errors[x].median);
      results.set("prediction_error_trimmed_mean", at, errors[x].trimmed_mean);
      results.set("prediction_error_weighted_mean", at, errors[x].weighted_mean);
    }
  }
};
const RegisterMeasure<PredictionErrors> registered(measure);

}  // namespace
}  // namespace kvsim::measures::prediction_error
