// What estimates from the window make of the true risk of an entry (metrics.md 1).
#include "analysis/risk.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "analysis/summary.hpp"
#include "run/measures/measure.hpp"
#include "run/measures/risk_estimates.hpp"
#include "sim/stages/queries/queries.hpp"

namespace kvsim::measures::risk {
namespace {

constexpr int64_t kSamples = 512;  // of (estimate, true risk) pairs per layer
constexpr const char* kEstimator = "layer estimator";

VariableValues estimators(const RunShape& /*run*/) {
  std::vector<std::string> names;
  for (const Estimator& estimator : risk_estimators()) names.emplace_back(estimator.name);
  return names;
}
std::vector<std::string> records_of_estimators() {
  std::vector<std::string> records;
  for (const Estimator& estimator : risk_estimators()) records.emplace_back(estimator.record);
  return records;
}
VariableValues samples(const RunShape& run) {
  const Settings settings = Record::parse(risk_estimators().front().record).settings;
  const int64_t window = chosen<Queries>(settings).window(settings, 0, run.info.prompt_len);
  const int64_t candidates = run.info.num_kv_heads * (run.info.prompt_len - window);
  std::vector<int64_t> numbers(static_cast<size_t>(std::clamp<int64_t>(candidates, 1, kSamples)));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

const DeclareMeasure measure(
    {.name = "risk", .place = 510, .whole = true, .observes = records_of_estimators},
    {{"estimator", "estimator", "1", "estimator of the risk",
      "`single`, `mean`, `max`: importance of one query (`importance,aggregate=single`), the mean "
      "(`importance`) or the maximum over window and heads (`importance,aggregate=max,group=max`); "
      "`max_prior`: the same with `prior=head-mean`; `defensivekv`: score of that preset",
      VariableType::text, Known{estimators}},
     {"sample", "sample", "1", "number of a sampled entry",
      "evenly spaced over the candidates of all KV heads", VariableType::int64, Known{samples}},
     {"risk_spearman", kEstimator, "1", "rank correlation with the true risk",
      "Spearman of estimate and true risk over the candidates, mean over KV heads"},
     {"risk_log_ratio_median", kEstimator, "nat", "typical error of the estimate",
      "median of ln(estimate / true risk), mean over KV heads"},
     {"risk_underestimated", kEstimator, "1", "share of underestimated entries",
      "share of candidates with estimate < true risk, mean over KV heads"},
     {"risk_prior_exceeds", kEstimator, "1", "share of entries whose prior is too high",
      "share of candidates whose prior exceeds the true risk, mean over KV heads; NaN without a "
      "prior"},
     {"risk_true", "layer sample", "model units", "true risk of sampled entries",
      "largest importance at any later step for any query head of the group"},
     {"risk_estimate", "layer estimator sample", "model units",
      "estimated risk of the same entries", "the score of the estimator's record"}});

class RiskMeasure : public Measure {
 public:
  explicit RiskMeasure(const MeasureRun& run)
      : Measure(run), scores_(run.info, run.options.layers, run.files) {}

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    const Table<float>& importance = layer.replay.prefill().importance();
    true_.emplace(layer.work.kv_heads(), run().info.prompt_len, importance.data(),
                  importance.columns());
  }
  void see_rows(const AttentionBlock& rows, int64_t first_step) override {
    true_->add(rows, first_step);
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const std::vector<RiskEstimates> estimates = scores_.of_layer(layer.work);
    take_samples(true_->risk(), results.row("risk_true", {layer.index}));
    for (size_t e = 0; e < estimates.size(); ++e) {
      const auto at = static_cast<int64_t>(e);
      write_quality(estimates[e], {layer.index, at}, results);
      take_samples(estimates[e].estimate, results.row("risk_estimate", {layer.index, at}));
    }
  }

 private:
  void write_quality(const RiskEstimates& estimates, std::initializer_list<int64_t> at,
                     MeasureResults& results) const {
    const Range candidates = scores_.candidates();
    const auto cut = [&](const Table<double>& table, int64_t kv) {
      return table.empty() ? std::span<const double>()
                           : table.row(kv).subspan(static_cast<size_t>(candidates.begin),
                                                   static_cast<size_t>(candidates.size()));
    };
    const Table<double>& risk = true_->risk();
    std::vector<double> ranks, ratio, under, exceeds;
    for (int64_t kv = 0; kv < risk.rows(); ++kv) {
      const RiskQuality quality = risk_quality(cut(estimates.estimate, kv), cut(risk, kv),
                                               cut(estimates.prior, kv));
      ranks.push_back(quality.spearman);
      ratio.push_back(quality.log_ratio_median);
      under.push_back(quality.underestimated);
      exceeds.push_back(quality.prior_exceeds);
    }
    results.set("risk_spearman", at, mean(ranks));
    results.set("risk_log_ratio_median", at, mean(ratio));
    results.set("risk_underestimated", at, mean(under));
    results.set("risk_prior_exceeds", at, mean(exceeds));
  }

  /// Entries evenly spaced over the candidates of all KV heads.
  void take_samples(const Table<double>& table, std::span<double> out) const {
    const Range candidates = scores_.candidates();
    const auto count = candidates.size() == 0 ? 0 : static_cast<int64_t>(out.size());
    for (int64_t k = 0; k < count; ++k) {
      const int64_t at = k * table.rows() * candidates.size() / count;
      out[static_cast<size_t>(k)] = table(at / candidates.size(),
                                          candidates.begin + at % candidates.size());
    }
  }

  RiskScores scores_;
  std::optional<TrueRisk> true_;  ///< of the layer at work
};
const RegisterMeasure<RiskMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::risk
