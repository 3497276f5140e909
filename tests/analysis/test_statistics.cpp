#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>

#include "analysis/statistics.hpp"
#include "analysis/summary.hpp"
#include "sim/core/random.hpp"

using namespace kvsim;

TEST_CASE("equal values share the mean of their ranks", "[analysis]") {
  CHECK(average_ranks(std::vector<double>{10, 20, 10, 30}) == std::vector<double>{1.5, 3, 1.5, 4});
}

TEST_CASE("Spearman sees order only, and nothing in constant or single values", "[analysis]") {
  const std::vector<double> x = {1, 2, 3, 4};
  CHECK(spearman(x, std::vector<double>{1, 10, 100, 1000}) == Approx(1));
  CHECK(spearman(x, std::vector<double>{4, 3, 2, 1}) == Approx(-1));
  // Ranks 2 1 4 3: 1 - 6 * 4 / (4 * 15) = 0.6.
  CHECK(spearman(x, std::vector<double>{0.2, 0.1, 0.9, 0.5}) == Approx(0.6));
  CHECK(std::isnan(spearman(x, std::vector<double>{1, 1, 1, 1})));
  CHECK(std::isnan(spearman(std::vector<double>{1}, std::vector<double>{1})));
}

TEST_CASE("quantiles of Student's distribution are those of its tables", "[analysis]") {
  CHECK(student_quantile(1, 0.975) == Approx(12.7062).epsilon(1e-5));
  CHECK(student_quantile(2, 0.975) == Approx(4.30265).epsilon(1e-5));
  CHECK(student_quantile(3, 0.975) == Approx(3.18245).epsilon(1e-5));
  CHECK(student_quantile(7, 0.975) == Approx(2.36462).epsilon(1e-5));
  CHECK(student_quantile(8, 0.95) == Approx(1.85955).epsilon(1e-5));
  CHECK(student_quantile(1000, 0.975) == Approx(1.96234).epsilon(1e-5));
}

TEST_CASE("intervals over 4, 6 and 8 traces hold the true mean 95 times in 100", "[analysis]") {
  for (const uint64_t count : {4, 6, 8}) {
    int held = 0;
    constexpr uint64_t kRuns = 4000;
    for (uint64_t run = 0; run < kRuns; ++run) {
      std::vector<double> values;
      for (uint64_t k = 0; k < count; ++k) {  // a normal number each, by Box and Muller
        const double radius = std::sqrt(-2 * std::log(1 - uniform(5, run, k, 0)));
        values.push_back(radius * std::cos(2 * std::numbers::pi * uniform(5, run, k, 1)));
      }
      const Interval found = mean_interval(values);
      held += found.low <= 0 && 0 <= found.high;
    }
    INFO(count);
    CHECK(std::abs(held / double{kRuns} - 0.95) < 0.012);  // 3.5 standard errors of the share
  }
  CHECK(std::isnan(mean_interval(std::vector<double>{1}).low));
}

TEST_CASE("intervals hold the mean, and shrink to it when nothing varies", "[analysis]") {
  std::vector<double> values;
  for (uint64_t i = 0; i < 200; ++i) values.push_back(uniform(7, 0, 0, i));
  const Interval steps = bootstrap_steps(values, 3, mean);
  const Interval traces = mean_interval(values);
  // Sums of 200 in another order.
  CHECK(bootstrap_mean(values, 3).low == Approx(steps.low).epsilon(1e-13));
  CHECK(bootstrap_mean(values, 3).high == Approx(steps.high).epsilon(1e-13));
  CHECK(steps.low < mean(values));
  CHECK(steps.high > mean(values));
  // Standard error of a mean of 200 uniform numbers: 0.289 / sqrt(200) = 0.0204.
  CHECK(traces.high - traces.low == Approx(4 * 0.0204).epsilon(0.2));
  const std::vector<double> constant(5, 2.0);
  CHECK(bootstrap_steps(constant, 0, mean).low == 2);
  CHECK(mean_interval(constant).high == 2);
}
