#include "run/measures/risk_estimates.hpp"

#include <numeric>

#include "sim/policy/scoring.hpp"
#include "sim/stages/prior/prior.hpp"
#include "sim/stages/weight/weight.hpp"

namespace kvsim {
namespace {

/// Where each score would be if it were at the prior: the mean of the head's unclamped scores,
/// times the weight of the entry where the record has one.
Table<double> priors(LayerWork& work, const ScoredLayer& scored, const Settings& settings,
                     Range candidates) {
  const auto& weight = chosen<Weight>(settings);
  Table<double> prior(scored.owners(), scored.entries(), 1.0);
  if (!weight.changes_nothing()) prior = weight.weights(work, false);
  for (int64_t owner = 0; owner < prior.rows(); ++owner) {
    const auto unclamped = scored.unweighted_raw.row(owner).subspan(
        static_cast<size_t>(candidates.begin), static_cast<size_t>(candidates.size()));
    const double mean = std::accumulate(unclamped.begin(), unclamped.end(), 0.0) /
                        static_cast<double>(candidates.size());
    for (double& value : prior.row(owner)) value *= mean;
  }
  return prior;
}

}  // namespace

const std::vector<Estimator>& risk_estimators() {
  static const std::vector<Estimator> all = {
      {"single", "importance,aggregate=single"},
      {"mean", "importance"},
      {"max", "importance,aggregate=max,group=max"},
      {"max_prior", "importance,aggregate=max,group=max,prior=head-mean"},
      {"defensivekv", "defensivekv"},
  };
  return all;
}

RiskScores::RiskScores(const TraceInfo& info, std::vector<int> layers, const SideFiles& files)
    : info_(info), files_(files), layers_(std::move(layers)), budgets_{Budget::parse("0.5")},
      preparation_(info_, layers_, budgets_) {
  for (const Estimator& estimator : risk_estimators())
    records_.push_back(preparation_.prepare(Record::parse(estimator.record)));
}

Range RiskScores::candidates() const {
  return preparation_.plans()[records_.front().budgets.front().plan].segments.front().candidates;
}

std::vector<RiskEstimates> RiskScores::of_layer(LayerWork& work) const {
  std::vector<ScorePlan> plans;
  for (const PreparedRecord& record : records_) {
    plans.push_back(preparation_.plans()[record.budgets.front().plan]);
    plans.back().wants_unweighted = true;
  }
  std::vector<const ScorePlan*> pointers;
  for (const ScorePlan& plan : plans) pointers.push_back(&plan);
  const auto results = score_layer(work, files_, 0, pointers);
  std::vector<RiskEstimates> estimates;
  for (size_t p = 0; p < plans.size(); ++p) {
    const ScoredLayer& scored = *results[p].front();
    const Settings& settings = plans[p].settings;
    const bool has_prior = !chosen<Prior>(settings).changes_nothing();
    estimates.push_back(
        {candidates(), scored.score,
         has_prior ? priors(work, scored, settings, candidates()) : Table<double>()});
  }
  return estimates;
}

}  // namespace kvsim
