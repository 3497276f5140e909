#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "analysis/formulas.hpp"
#include "analysis/statistics.hpp"

using namespace kvsim;

namespace {
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
}  // namespace

TEST_CASE("percentiles lie between neighbouring ranks", "[analysis]") {
  const std::vector<double> values = {4, 1, 3, 2};  // sorted: 1 2 3 4, ranks 0..3
  CHECK(percentile(values, 0) == 1);
  CHECK(percentile(values, 100) == 4);
  CHECK(percentile(values, 50) == Approx(2.5));
  CHECK(percentile(values, 1) == Approx(1.03));  // rank 0.03
  CHECK(percentile(values, 99) == Approx(3.97));
  CHECK(percentile(std::vector<double>{7}, 99) == 7);
  CHECK(percentile(std::vector<double>{1, kInfinity, kInfinity}, 75) == kInfinity);
}

TEST_CASE("percentiles of many values are those of the sorted values", "[analysis]") {
  std::mt19937 random(3);
  for (const double width : {0.0, 1e-3, 40.0}) {  // equal values, one octave, many
    std::vector<double> values(40000);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = (i % 3 == 0 ? -1 : 1) *
                  std::exp(width * std::uniform_real_distribution<double>(-1, 1)(random));
    std::vector<double> sorted = values;
    std::ranges::sort(sorted);
    values.insert(values.begin() + 7, NAN);
    for (const double p : {0.0, 1.0, 33.4, 50.0, 99.0, 100.0}) {
      CAPTURE(width, p);
      const double rank = p / 100 * static_cast<double>(sorted.size() - 1);
      const auto at = static_cast<size_t>(rank);
      const double next = at + 1 < sorted.size() ? sorted[at + 1] : sorted[at];
      CHECK(percentile(values, p) ==
            Approx(sorted[at] + (rank - static_cast<double>(at)) * (next - sorted[at])));
    }
  }
}

TEST_CASE("undefined steps are left out of summaries, and a summary of nothing is undefined",
          "[analysis]") {
  const std::vector<double> values = {kNaN, 2, kNaN, 6};
  CHECK(mean(values) == 4);
  CHECK(minimum(values) == 2);
  CHECK(maximum(values) == 6);
  CHECK(percentile(values, 50) == 4);
  const std::vector<double> nothing = {kNaN, kNaN};
  for (const double summary : {mean(nothing), minimum(nothing), maximum(nothing),
                               percentile(nothing, 1), outlier_count(nothing, 0.5)}) {
    CHECK(std::isnan(summary));
  }
}

TEST_CASE("a step at the outlier threshold is no outlier", "[analysis]") {
  CHECK(outlier_count(std::vector<double>{0.5, 0.49, kNaN, 0.9}, 0.5) == 1);
}

TEST_CASE("retained importance pools the heads before it divides", "[analysis]") {
  // Two heads, two steps. Head 0 keeps 1 of 4, head 1 keeps 6 of 6: pooled 7/10, not the mean 5/8.
  Table<double> kept(2, 2);
  Table<double> total(2, 2);
  kept.values() = {1, 0, 6, 0};
  total.values() = {4, 2, 6, 0};
  std::vector<double> pooled(2);
  retained_pooled(kept, total, pooled);
  CHECK(pooled[0] == Approx(0.7));
  CHECK(pooled[1] == 0);
  std::vector<double> head(2);
  retained_of_head(kept, total, 1, head);
  CHECK(head[0] == 1);
  CHECK(head[1] == 1);  // nothing to retain: nothing is lost
}

TEST_CASE("rounding never takes a share out of its range", "[analysis]") {
  CHECK(retained_share(1 + 1e-12, 1) == 1);
  CHECK(retained_share(-1e-18, 1) == 0);
  CHECK(retained_share(0, 0) == 1);
}

TEST_CASE("an error over a reference of zero is undefined, no error is none", "[analysis]") {
  const std::vector<double> error = {0, 1e-3, 3, kNaN};
  const std::vector<double> reference = {0, 0, 2, 1};
  const std::vector<double> relative = relative_errors(error, reference);
  CHECK(relative[0] == 0);
  CHECK(std::isnan(relative[1]));
  CHECK(relative[2] == 1.5);
  CHECK(std::isnan(relative[3]));
  CHECK(undefined_errors(error, reference) == 1);
}

TEST_CASE("projected steps are evenly spaced from the first", "[analysis]") {
  CHECK(evaluated_steps(10, 4) == std::vector<int64_t>{0, 2, 5, 7});
  CHECK(evaluated_steps(3, 0) == std::vector<int64_t>{0, 1, 2});
  CHECK(evaluated_steps(3, 8) == std::vector<int64_t>{0, 1, 2});
  CHECK(evaluated_steps(5, 1) == std::vector<int64_t>{0});
}
