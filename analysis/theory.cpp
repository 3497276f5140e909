#include "analysis/theory.hpp"

#include "sim/core/numbers.hpp"

namespace kvsim {
namespace {

/// Sums of a quantity and of its square over samples.
struct Tally {
  double sum = 0;
  double squares = 0;
  void add(double x) {
    sum += x;
    squares += x * x;
  }
  Estimate estimate(int64_t samples) const {
    const auto count = static_cast<double>(samples);
    const double mean = sum / count;
    const double variance = std::max(0.0, squares / count - mean * mean);
    return {mean, samples > 1 ? std::sqrt(variance / (count - 1)) : 0};
  }
};

constexpr Estimate RiskSample::*kSampled[] = {&RiskSample::no_high,       &RiskSample::mean,
                                              &RiskSample::max,           &RiskSample::max_prior,
                                              &RiskSample::mean_outranks, &RiskSample::max_outranks,
                                              &RiskSample::prior_outranks};
using Tallies = std::array<Tally, std::size(kSampled)>;

/// Running state of one sampled window.
class Window {
 public:
  Window(const RiskModel& model, uint64_t seed, uint64_t sample)
      : model_(model), seed_(seed), sample_(sample) {}

  void observe(int64_t j) {
    const double state = uniform(seed_, sample_, static_cast<uint64_t>(j), 0);
    if (j == 0 || !model_.dwell) {
      high_ = state < model_.epsilon;
    } else {
      high_ = high_ ? state >= model_.leaving() : state < model_.entering();
    }
    const double place = uniform(seed_, sample_, static_cast<uint64_t>(j), 1);
    const double value = high_ ? model_.b + (model_.c - model_.b) * place : model_.a * place;
    highs_ += high_;
    sum_ += value;
    max_ = std::max(max_, value);
  }
  void tally(int64_t m, Tallies& to) const {
    const double mean = sum_ / static_cast<double>(m), s = model_.steady, r = model_.prior;
    const double with_prior = std::max(max_, r);
    const double seen[] = {highs_ == 0 ? 1.0 : 0.0,
                           mean,
                           max_,
                           with_prior,
                           mean > s ? 1.0 : 0.0,
                           max_ > s ? 1.0 : 0.0,
                           with_prior > std::max(s, r) ? 1.0 : 0.0};
    for (size_t k = 0; k < to.size(); ++k) to[k].add(seen[k]);
  }
  double max() const { return max_; }

 private:
  const RiskModel& model_;
  uint64_t seed_;
  uint64_t sample_;
  bool high_ = false;
  int64_t highs_ = 0;
  double sum_ = 0;
  double max_ = 0;
};

}  // namespace

double RiskModel::leaving() const { return dwell ? 1 / *dwell : 1 - epsilon; }

double RiskModel::entering() const { return dwell ? epsilon / ((1 - epsilon) * *dwell) : epsilon; }

double mean_of_mean(const RiskModel& model) {
  return (1 - model.epsilon) * model.a / 2 + model.epsilon * (model.b + model.c) / 2;
}

double bound_of_max(const RiskModel& model) {
  const double none = std::pow(1 - model.epsilon, static_cast<double>(model.m));
  return none * model.a / 2 + (1 - none) * (model.b + model.c) / 2;
}

std::vector<double> high_counts(const RiskModel& model) {
  const auto m = static_cast<size_t>(model.m);
  // P(k high so far, state now); the chain starts stationary.
  std::vector<double> low(m + 1, 0.0);
  std::vector<double> high(m + 1, 0.0);
  low[0] = 1 - model.epsilon;
  high[1] = model.epsilon;
  const double leave = model.leaving();
  const double enter = model.entering();
  for (size_t j = 1; j < m; ++j) {
    for (size_t k = j + 2; k-- > 0;) {  // descending: high[k] needs the old entries of k - 1
      const double to_high = k == 0 ? 0 : low[k - 1] * enter + high[k - 1] * (1 - leave);
      low[k] = low[k] * (1 - enter) + high[k] * leave;
      high[k] = to_high;
    }
  }
  for (size_t k = 0; k <= m; ++k) low[k] += high[k];
  return low;
}

double max_distribution(const RiskModel& model, const std::vector<double>& counts, double x) {
  if (x < 0) return 0;
  if (x >= model.c) return 1;
  const auto m = static_cast<double>(model.m);
  const double low = model.a > 0 ? std::min(1.0, x / model.a) : 1.0;
  const double high = std::clamp((x - model.b) / (model.c - model.b), 0.0, 1.0);
  double sum = 0;
  for (size_t k = 0; k < counts.size(); ++k) {
    const auto highs = static_cast<double>(k);
    sum += counts[k] * std::pow(low, m - highs) * std::pow(high, highs);  // 0^0 = 1
  }
  return sum;
}

double mean_of_max_with_prior(const RiskModel& model, const std::vector<double>& counts) {
  const auto m = static_cast<double>(model.m);
  const double r = model.prior;
  double power = 0;  // integral of P(max <= x) from r to c
  if (r < model.a) power += counts[0] * model.a / (m + 1) * (1 - std::pow(r / model.a, m + 1));
  power += counts[0] * std::max(0.0, model.b - std::max(r, model.a));
  const double from = std::clamp((r - model.b) / (model.c - model.b), 0.0, 1.0);
  for (size_t k = 0; k < counts.size(); ++k) {
    const auto next = static_cast<double>(k) + 1;
    power += counts[k] * (model.c - model.b) * (1 - std::pow(from, next)) / next;
  }
  return model.c - power;
}

std::vector<RiskSample> simulate_risk(const RiskModel& model, const std::vector<int64_t>& sizes,
                                      int64_t samples, uint64_t seed) {
  std::vector<Tallies> tallies(sizes.size());
  for (int64_t sample = 0; sample < samples; ++sample) {
    Window window(model, seed, static_cast<uint64_t>(sample));
    size_t size = 0;
    for (int64_t j = 0; j < model.m && size < sizes.size(); ++j) {
      window.observe(j);
      if (j + 1 == sizes[size]) window.tally(sizes[size], tallies[size]), ++size;
    }
  }
  std::vector<RiskSample> result;
  for (size_t i = 0; i < sizes.size(); ++i) {
    result.emplace_back().m = sizes[i];
    for (size_t k = 0; k < tallies[i].size(); ++k)
      result.back().*kSampled[k] = tallies[i][k].estimate(samples);
  }
  return result;
}

std::vector<double> sampled_max_distribution(const RiskModel& model, const std::vector<double>& x,
                                             int64_t samples, uint64_t seed) {
  std::vector<double> below(x.size(), 0.0);
  for (int64_t sample = 0; sample < samples; ++sample) {
    Window window(model, seed, static_cast<uint64_t>(sample));
    for (int64_t j = 0; j < model.m; ++j) window.observe(j);
    const auto first = std::ranges::lower_bound(x, window.max()) - x.begin();
    for (size_t i = first; i < x.size(); ++i) below[i] += 1;
  }
  for (double& share : below) share /= static_cast<double>(samples);
  return below;
}

bool RiskRow::agrees(int64_t samples) const {
  if (std::isnan(closed_form)) return true;
  const double error = std::max(sampled.standard_error, 1 / static_cast<double>(samples));
  const double difference = sampled.mean - closed_form;
  return bound ? difference >= -4 * error : std::abs(difference) <= 4 * error;
}

std::vector<RiskRow> risk_rows(const RiskModel& asked, const RiskSample& sample) {
  RiskModel model = asked;
  model.m = sample.m;
  const std::vector<double> counts = high_counts(model);
  RiskModel plain = model;
  plain.prior = 0;
  const auto above = [&](double x) { return 1 - max_distribution(model, counts, x); };
  const double max = mean_of_max_with_prior(plain, counts);
  const double max_prior = mean_of_max_with_prior(model, counts);
  const double bound = model.dwell ? kUndefined : bound_of_max(model);
  const auto bias = [&](Estimate e) { return Estimate{model.c - e.mean, e.standard_error}; };
  const double mean = mean_of_mean(model);
  return {
      {"P(no high observation)", counts[0], sample.no_high},
      {"E[mean]", mean, sample.mean},
      {"E[max]", max, sample.max},
      {"E[max], lower bound of the paper", bound, sample.max, true},
      {"E[max(X, prior)]", max_prior, sample.max_prior},
      {"bias of mean", model.c - mean, bias(sample.mean)},
      {"bias of max", model.c - max, bias(sample.max)},
      {"bias of max with prior", model.c - max_prior, bias(sample.max_prior)},
      {"P(mean outranks steady)", kUndefined, sample.mean_outranks},
      {"P(max outranks steady)", above(model.steady), sample.max_outranks},
      {"P(max with prior outranks steady)", above(std::max(model.steady, model.prior)),
       sample.prior_outranks},
  };
}

}  // namespace kvsim
