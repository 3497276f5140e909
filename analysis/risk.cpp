#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/policy/scoring.hpp"

namespace kvsim {
namespace {

/// Share of places at which a < b.
double share_below(std::span<const double> a, std::span<const double> b) {
  if (a.empty()) return kUndefined;
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] < b[i];
  return static_cast<double>(count) / static_cast<double>(a.size());
}

}  // namespace

RiskQuality risk_quality(std::span<const double> estimate, std::span<const double> risk,
                         std::span<const double> prior) {
  std::vector<double> ratios;
  for (size_t i = 0; i < risk.size(); ++i)
    if (estimate[i] > 0 || risk[i] > 0) ratios.push_back(std::log(estimate[i] / risk[i]));
  return {spearman(estimate, risk), percentile(ratios, 50), share_below(estimate, risk),
          prior.empty() ? kUndefined : share_below(risk, prior)};
}

}  // namespace kvsim

namespace kvsim::measures::risk {
namespace {

/// Ways to estimate an entry's risk from the window of the prompt: scores of records. One query,
/// the mean and the maximum over the window, the maximum with DefensiveKV's prior, and
/// DefensiveKV's own order, in which the norm of the value multiplies after the prior.
constexpr struct {
  const char *name, *record;
} kEstimators[] = {{"single", "importance,aggregate=single"},
                   {"mean", "importance"},
                   {"max", "importance,aggregate=max,group=max"},
                   {"max_prior", "importance,aggregate=max,group=max,prior=head-mean"},
                   {"defensivekv", "defensivekv"}};

constexpr int64_t kSamples = 512;  // of (estimate, true risk) pairs per layer
constexpr const char* kEstimator = "layer estimator";

VariableValues estimators(const RunShape& /*run*/) {
  std::vector<std::string> names;
  for (const auto& estimator : kEstimators) names.emplace_back(estimator.name);
  return names;
}
std::vector<std::string> records_of_estimators() {
  std::vector<std::string> records;
  for (const auto& estimator : kEstimators) records.emplace_back(estimator.record);
  return records;
}
VariableValues samples(const RunShape& run) {
  const Settings settings = Record::parse(kEstimators[0].record).settings;
  const int64_t window = chosen<Queries>(settings).window(settings, 0, run.info.prompt_len);
  const int64_t candidates = run.info.num_kv_heads * (run.info.prompt_len - window);
  return ascending<int64_t>(std::clamp<int64_t>(candidates, 1, kSamples));
}

/// Where each score would be if it were at the prior: the mean of the head's unclamped scores,
/// times the weight of the entry where the record has one.
Table<double> priors(LayerWork& work, const ScoredLayer& scored, const Settings& settings,
                     Range candidates) {
  const auto& weight = chosen<Weight>(settings);
  Table<double> prior(scored.owners(), scored.entries(), 1.0);
  if (!weight.changes_nothing()) prior = weight.weights(work, false);
  for (int64_t owner = 0; owner < prior.rows(); ++owner) {
    const auto unclamped = scored.unweighted_raw.row(owner).subspan(candidates.begin,
                                                                    candidates.size());
    const double mean = std::accumulate(unclamped.begin(), unclamped.end(), 0.0) /
                        static_cast<double>(candidates.size());
    for (double& value : prior.row(owner)) value *= mean;
  }
  return prior;
}

/// True risk of an entry (DefensiveKV 3.1): the largest importance that it ever has for a later
/// query of any head that shares it. Beside it stand the scores of all estimators.
struct Risk : Measure {
  explicit Risk(const MeasureRun& run)
      : Measure(run), preparation_(run.info, run.options.layers, budgets_) {
    for (const std::string& record : records_of_estimators())
      records_.push_back(preparation_.prepare(Record::parse(record)));
    candidates_ = plan_of(records_.front()).segments.front().candidates;
  }

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    importance_ = &layer.replay.prefill().importance();
    risk_ = Table<double>(layer.work.kv_heads(), run().info.prompt_len);
  }
  void see_rows(const AttentionBlock& rows, int64_t /*first_step*/) override {
    constexpr int64_t kTile = 512;
    const auto risk = risk_.row(rows.kv_head);
    const auto entries = std::ssize(risk);
    parallel_for((entries + kTile - 1) / kTile, [&](int64_t tile) {
      const int64_t end = std::min(entries, (tile + 1) * kTile);
      for (int x = 0; x < rows.heads; ++x) {
        const auto weight = importance_->row(rows.kv_head * rows.heads + x);
        for (int64_t r = 0; r < rows.rows; ++r) {
          const float* row = rows.attention_row(x, r);
          for (int64_t i = tile * kTile; i < end; ++i)
            risk[i] = std::max(risk[i],
                               static_cast<double>(row[i]) * static_cast<double>(weight[i]));
        }
      }
    });
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    std::vector<ScorePlan> plans;
    for (const PreparedRecord& record : records_) {
      plans.push_back(plan_of(record));
      plans.back().wants_unweighted = true;
    }
    std::vector<const ScorePlan*> pointers;
    for (const ScorePlan& plan : plans) pointers.push_back(&plan);
    const auto scored = score_layer(layer.work, run().files, 0, pointers);
    take_samples(risk_, results.row("risk_true", {layer.index}));
    for (int64_t e = 0; e < std::ssize(plans); ++e) {
      const ScoredLayer& own = *scored[e].front();
      Table<double> prior;  // none for most
      if (!chosen<Prior>(plans[e].settings).changes_nothing())
        prior = priors(layer.work, own, plans[e].settings, candidates_);
      write_quality(own.score, prior, {layer.index, e}, results);
      take_samples(own.score, results.row("risk_estimate", {layer.index, e}));
    }
  }

 private:
  const ScorePlan& plan_of(const PreparedRecord& record) const {
    return preparation_.plans()[record.budgets.front().plan];
  }

  void write_quality(const Table<double>& estimate, const Table<double>& prior,
                     std::initializer_list<int64_t> at, MeasureResults& results) const {
    const auto cut = [&](const Table<double>& table, int64_t kv) {
      return table.empty() ? std::span<const double>()
                           : table.row(kv).subspan(candidates_.begin, candidates_.size());
    };
    std::vector<double> ranks, ratio, under, exceeds;
    for (int64_t kv = 0; kv < risk_.rows(); ++kv) {
      const RiskQuality quality = risk_quality(cut(estimate, kv), cut(risk_, kv), cut(prior, kv));
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
    const auto count = candidates_.size() == 0 ? 0 : std::ssize(out);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t at = k * table.rows() * candidates_.size() / count;
      out[k] = table(at / candidates_.size(), candidates_.begin + at % candidates_.size());
    }
  }

  std::vector<Budget> budgets_ = {Budget::parse("0.5")};
  Preparation preparation_;
  std::vector<PreparedRecord> records_;  ///< of the estimators
  Range candidates_;                     ///< entries of a KV head that have an estimate
  const Table<float>* importance_ = nullptr;
  Table<double> risk_;  ///< [Hkv][n] R*
};
const RegisterMeasure<Risk> register_risk(
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

}  // namespace
}  // namespace kvsim::measures::risk
