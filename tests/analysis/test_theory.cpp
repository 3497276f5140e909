#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/theory.hpp"

using namespace kvsim;

namespace {

/// E[max(X, r)] by the midpoint rule on the distribution of the maximum.
template <class Distribution>
double integrated(const RiskModel& model, Distribution below) {
  constexpr int kCells = 200000;
  double sum = 0;
  for (int i = 0; i < kCells; ++i) {
    const double x = model.prior + (model.c - model.prior) * (i + 0.5) / kCells;
    sum += 1 - below(x);
  }
  return model.prior + (model.c - model.prior) * sum / kCells;
}

/// H(x)^m of independent observations (metrics.md 8).
double independent(const RiskModel& model, double x) {
  const double low = x < 0 ? 0 : model.a > 0 ? std::min(1.0, x / model.a) : 1;
  const double high = std::clamp((x - model.b) / (model.c - model.b), 0.0, 1.0);
  return std::pow((1 - model.epsilon) * low + model.epsilon * high, static_cast<double>(model.m));
}

double mean_of_max(RiskModel model) {
  model.prior = 0;
  return mean_of_max_with_prior(model, high_counts(model));
}

}  // namespace

TEST_CASE("two observations of the risk model, worked by hand", "[analysis]") {
  // m = 2, half of the observations high on [1, 3], the others low on [0, 1].
  RiskModel model{.m = 2, .epsilon = 0.5, .a = 1, .b = 1, .c = 3, .prior = 0, .steady = 2};
  CHECK(mean_of_mean(model) == Approx(0.25 + 1));  // 0.5 * 0.5 + 0.5 * 2
  CHECK(high_counts(model)[0] == Approx(0.25));
  // Two low: 2/3. One of each (1/2): mean of the high one, 2. Two high: 1 + 2 * 2/3 = 7/3.
  CHECK(mean_of_max(model) == Approx(0.25 * 2 / 3 + 0.5 * 2 + 0.25 * 7 / 3));
  CHECK(bound_of_max(model) == Approx(0.25 * 0.5 + 0.75 * 2));
  // One observation is <= 2 with probability 1/2 + 1/2 * 1/2.
  CHECK(max_distribution(model, high_counts(model), 2) == Approx(0.5625));
  model.prior = 1;  // two low ones now count 1 instead of 2/3
  CHECK(mean_of_max_with_prior(model, high_counts(model)) == Approx(0.25 + 0.5 * 2 + 0.25 * 7 / 3));
  model.prior = 3;
  CHECK(mean_of_max_with_prior(model, high_counts(model)) == Approx(3));
}

TEST_CASE("a chain of three observations, path by path", "[analysis]") {
  // epsilon 1/4, dwell 2: leaving 1/2, entering (1/4) / (3/4 * 2) = 1/6.
  const RiskModel model{.m = 3, .epsilon = 0.25, .dwell = 2};
  CHECK(model.leaving() == Approx(0.5));
  CHECK(model.entering() == Approx(1.0 / 6));
  const std::vector<double> counts = high_counts(model);
  // LLL; LLH, LHL, HLL; LHH, HHL, HLH; HHH.
  CHECK(counts[0] == Approx(0.75 * 25 / 36));
  CHECK(counts[1] == Approx(0.75 * 5 / 36 + 0.75 / 6 / 2 + 0.25 / 2 * 5 / 6));
  CHECK(counts[2] == Approx(0.75 / 6 / 2 + 0.25 / 4 + 0.25 / 2 / 6));
  CHECK(counts[3] == Approx(0.25 / 4));
  double expected = 0;
  for (size_t k = 0; k < counts.size(); ++k) expected += static_cast<double>(k) * counts[k];
  CHECK(expected == Approx(3 * 0.25));  // stationary
}

TEST_CASE("closed forms agree with quadrature and, without a chain, with independent observations",
          "[analysis]") {
  for (const double prior : {0.0, 0.05, 0.3, 0.7, 1.0}) {
    for (const double epsilon : {0.05, 0.4, 1.0}) {
      for (const double a : {0.0, 0.1}) {
        const RiskModel model{.m = 8, .epsilon = epsilon, .a = a, .prior = prior};
        const std::vector<double> counts = high_counts(model);
        INFO("prior " << prior << ", epsilon " << epsilon << ", a " << a);
        const double closed = mean_of_max_with_prior(model, counts);
        // Midpoints of 2e5 cells: wrong by a cell at a jump of the distribution.
        CHECK(closed == Approx(integrated(model, [&](double x) {
                          return independent(model, x);
                        })).margin(1e-5));
        if (prior == 0) CHECK(mean_of_max(model) == Approx(closed));
        for (const double x : {0.02, 0.3, 0.6, 0.99})
          CHECK(max_distribution(model, counts, x) == Approx(independent(model, x)));
      }
    }
  }
}

TEST_CASE("the simulation agrees with every closed form within 4 standard errors", "[analysis]") {
  for (const std::optional<double> dwell : {std::optional<double>(), {1.0}, {6.0}}) {
    const RiskModel model{.m = 16, .dwell = dwell};
    for (const RiskSample& sample : simulate_risk(model, {1, 5, 16}, 20000, 3)) {
      for (const RiskRow& row : risk_rows(model, sample)) {
        INFO(row.quantity << ", m " << sample.m << ", dwell " << dwell.value_or(0));
        CHECK(row.agrees(20000));
      }
    }
  }
}

TEST_CASE("means hide what a maximum sees; both underestimate", "[analysis]") {
  const RiskModel model;
  CHECK(mean_of_mean(model) < mean_of_max(model));
  CHECK(mean_of_max(model) < model.c);
  const RiskSample sample = simulate_risk(model, {model.m}, 5000, 0).front();
  CHECK(sample.mean_outranks.mean < 0.01);  // 32 draws, 13 of them high: practically never
  CHECK(sample.max_outranks.mean > 0.75);   // 1 - 0.95^32 = 0.81
}

TEST_CASE("the sampled distribution of the maximum follows the closed one", "[analysis]") {
  const RiskModel model{.m = 4, .epsilon = 0.3};
  const std::vector<double> x = {0.05, 0.1, 0.4, 0.75, 1.0};
  const std::vector<double> below = sampled_max_distribution(model, x, 20000, 1);
  // 4 standard errors of a share of 20000: at most 4 * 0.5 / sqrt(20000).
  for (size_t i = 0; i < x.size(); ++i)
    CHECK(below[i] == Approx(max_distribution(model, high_counts(model), x[i])).margin(0.0142));
}
