#include <catch2/catch.hpp>
#include <cmath>

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

TEST_CASE("bootstrap intervals hold the mean, and shrink to it when nothing varies", "[analysis]") {
  std::vector<double> values;
  for (uint64_t i = 0; i < 200; ++i) values.push_back(uniform(7, 0, 0, i));
  const Interval steps = bootstrap_steps(values, 3, mean);
  const Interval traces = bootstrap_traces(values, 3, mean);
  CHECK(steps.low < mean(values));
  CHECK(steps.high > mean(values));
  // Standard error of a mean of 200 uniform numbers: 0.289 / sqrt(200) = 0.0204.
  CHECK(traces.high - traces.low == Approx(4 * 0.0204).epsilon(0.2));
  const std::vector<double> constant(5, 2.0);
  CHECK(bootstrap_steps(constant, 0, mean).low == 2);
  CHECK(bootstrap_traces(constant, 0, mean).high == 2);
}
