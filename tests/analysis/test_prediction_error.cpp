#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/formulas.hpp"
#include "analysis/statistics.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_trace.hpp"
#include "tests/support/small_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr double kBinWidth = 1e-3;

double trimmed(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t cut = values.size() / 10;
  return mean(std::span(values).subspan(cut, values.size() - 2 * cut));
}

/// One predictor over the whole layer, from its definition.
PredictionError naive(const LayerTrace& layer, const std::string& predictor, bool of_attention,
                      int64_t horizon) {
  const TraceInfo& info = *layer.info;
  const auto rows = static_cast<int64_t>(info.query_position.size());
  std::vector<double> errors, weights;
  for (int head = 0; head < info.num_query_heads; ++head) {
    std::vector<std::vector<double>> attention, score;
    for (int64_t r = info.first_step(); r < rows; ++r) {
      const auto logits = reference::logits(layer, head, r);
      attention.push_back(reference::attention(layer, head, logits).weight);
      score.emplace_back();
      for (const double x : logits) score.back().push_back(std::exp(x));
      if (of_attention) score.back() = attention.back();
    }
    for (size_t t = 0; t < score.size(); ++t) {
      const int64_t position = info.query_position[static_cast<size_t>(info.first_step()) + t];
      for (size_t u = t; u < score.size(); ++u) {
        if (info.query_position[static_cast<size_t>(info.first_step()) + u] != position + horizon)
          continue;
        for (size_t i = 0; i < static_cast<size_t>(info.prompt_len); ++i) {
          double sum = 0, weight = 0;
          for (size_t x = 0; x <= t; ++x) {
            double w = 1;
            if (predictor == "last") w = x == t;
            if (predictor == "sliding") w = t - x < 32;
            if (predictor.starts_with("ema "))
              w = std::pow(std::stod(predictor.substr(4)), static_cast<double>(t - x));
            sum += w * score[x][i];
            weight += w;
          }
          errors.push_back(std::fabs(sum / weight / score[u][i] - 1));
          weights.push_back(attention[u][i]);
        }
      }
    }
  }
  double weighted = 0, total = 0;
  for (size_t k = 0; k < errors.size(); ++k) {
    weighted += weights[k] * errors[k];
    total += weights[k];
  }
  return {percentile(errors, 50), trimmed(errors), weighted / total};
}

PredictionError found(const std::vector<PredictionError>& errors, size_t score, size_t predictor) {
  return errors.at(score * score_predictors().size() + predictor);
}

}  // namespace

TEST_CASE("a fine histogram knows ranks and trimmed means to a thousandth", "[statistics]") {
  FineHistogram histogram;
  CHECK(std::isnan(histogram.percentile(50)));
  std::vector<double> values;
  for (uint64_t i = 0; i < 1003; ++i) {
    values.push_back(std::exp(6 * normal(1, 2, i)));
    histogram.add(values.back());
  }
  for (const double p : {0.0, 1.0, 50.0, 99.0, 100.0})
    CHECK(histogram.percentile(p) == Approx(percentile(values, p)).epsilon(kBinWidth));
  CHECK(histogram.trimmed_mean(0.1) == Approx(trimmed(values)).epsilon(kBinWidth));
  FineHistogram few;
  for (const double x : {0.0, 4.0, 1e-60}) few.add(x);
  CHECK(few.percentile(50) == Approx(0).margin(1e-12));
  CHECK(few.percentile(100) == 4);
}

TEST_CASE("prediction errors are those of the definition, for gaps and horizons", "[merge]") {
  RandomTraceShape shape{.query_heads = 6, .kv_heads = 2, .d = 9, .prompt = 13, .later = 44};
  int64_t horizon = 1;
  SECTION("every step") {}
  SECTION("three ahead") { horizon = 3; }
  SECTION("steps with gaps, sinks and softcap") {
    shape.queries = {12, 13, 14, 17, 18, 20, 21, 22, 40, 41, 55};
    shape.sink = true;
    shape.softcap = 4;
  }
  const auto trace = random_trace(shape);
  const auto backend = make_cpu_backend();
  LayerWork work(trace->layer, *backend);
  const auto errors = prediction_errors(work, horizon);
  for (size_t score = 0; score < 2; ++score) {
    for (size_t p = 0; p < score_predictors().size(); ++p) {
      INFO(predicted_scores()[score] << " by " << score_predictors()[p]);
      const PredictionError expected = naive(trace->layer, score_predictors()[p], score == 1,
                                             horizon);
      const PredictionError one = found(errors, score, p);
      CHECK(one.median == Approx(expected.median).epsilon(kBinWidth));
      CHECK(one.trimmed_mean == Approx(expected.trimmed_mean).epsilon(kBinWidth));
      CHECK(one.weighted_mean == Approx(expected.weighted_mean).epsilon(1e-4));
    }
  }
}

TEST_CASE("prediction of one score by hand: 1, 3, then 2", "[merge]") {
  // One prompt entry whose score is 1 at the first later step, 3 at the second, 2 at the third.
  const auto trace = random_trace(
      {.query_heads = 1, .kv_heads = 1, .d = 1, .prompt = 1, .later = 3});
  LayerTrace& layer = trace->layer;
  layer.scale = 1;
  set_element(layer.k, 0, 0, 0, 1);
  const double scores[] = {1, 3, 2};
  for (int64_t t = 1; t < 4; ++t)
    set_element(layer.q, 0, t, 0, static_cast<float>(std::log(scores[t - 1])));
  const auto backend = make_cpu_backend();
  LayerWork work(layer, *backend);
  const auto errors = prediction_errors(work, 1);
  // last: |1/3 - 1| and |3/2 - 1|; mean of all: the same first, then |2/2 - 1|.
  CHECK(found(errors, 0, 7).median == Approx((2.0 / 3 + 0.5) / 2).epsilon(kBinWidth));
  CHECK(found(errors, 0, 5).median == Approx((2.0 / 3 + 0) / 2).epsilon(kBinWidth));
  // ema 0.5: the second prediction is (0.25 * 1 + 0.5 * 3) / 0.75 = 7/3, off by 1/6.
  CHECK(found(errors, 0, 0).median == Approx((2.0 / 3 + 1.0 / 6) / 2).epsilon(kBinWidth));
  const auto far = prediction_errors(work, 3);
  CHECK(std::isnan(found(far, 0, 0).median));
}
