#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim {

/// DefensiveKV's model of risk (Appendix C; metrics.md 8): each of m observations is high, U[b, c],
/// with probability epsilon, else low, U[0, a]; a <= b < c. The true risk is c.
struct RiskModel {
  int64_t m = 32;
  double epsilon = 0.05;
  double a = 0.1;
  double b = 0.5;
  double c = 1;
  double prior = 0.2;   ///< r, 0 <= r <= c
  double steady = 0.3;  ///< s: value of the entry that never changes
  /// Mean number of observations that a high state lasts, >= 1: a two-state Markov chain started
  /// stationary. Not set: independent observations, a chain with dwell 1/(1 - epsilon).
  std::optional<double> dwell = {};

  double leaving() const;   ///< probability that a high observation is followed by a low one
  double entering() const;  ///< and the other way round; may come out above 1: no such chain
};

double mean_of_mean(const RiskModel& model);
/// The paper's lower bound of E[max], of independent observations.
double bound_of_max(const RiskModel& model);

/// P(k of the m observations are high), k = 0..m, of the chain (of the binomial without one).
std::vector<double> high_counts(const RiskModel& model);
/// P(max <= x) when k high observations come with probability counts[k].
double max_distribution(const RiskModel& model, const std::vector<double>& counts, double x);
/// E[max(X, r)] then.
double mean_of_max_with_prior(const RiskModel& model, const std::vector<double>& counts);

/// A sample mean with its standard error.
struct Estimate {
  double mean = 0;
  double standard_error = 0;
};

/// Findings of `samples` windows of m draws about their first `m` observations.
struct RiskSample {
  int64_t m = 0;
  Estimate no_high;
  Estimate mean;  ///< mean of the observations
  Estimate max;
  Estimate max_prior;       ///< max(X, r)
  Estimate mean_outranks;   ///< [mean > s]: beats the steady entry
  Estimate max_outranks;    ///< [max > s]
  Estimate prior_outranks;  ///< [max(X, r) > max(s, r)]; a tie does not count
};

/// One simulation serves all window lengths: sizes are ascending, the last is at most model.m.
/// Draws are u(seed, sample, observation, 0 or 1) of policies.md 12.
std::vector<RiskSample> simulate_risk(const RiskModel& model, const std::vector<int64_t>& sizes,
                                      int64_t samples, uint64_t seed);

/// Share of the sampled windows of model.m observations whose maximum is <= x, for ascending x.
std::vector<double> sampled_max_distribution(const RiskModel& model, const std::vector<double>& x,
                                             int64_t samples, uint64_t seed);

struct RiskRow {
  const char* quantity;
  double closed_form = 0;  ///< NaN: there is none
  Estimate sampled;
  bool bound = false;  ///< closed_form is a lower bound, not a value
  /// Within 4 standard errors (or not below the bound by more); rare events that no sample saw
  /// count as one sample.
  bool agrees(int64_t samples) const;
};

/// Every quantity beside what was sampled, at sample.m observations.
std::vector<RiskRow> risk_rows(const RiskModel& model, const RiskSample& sample);

}  // namespace kvsim
