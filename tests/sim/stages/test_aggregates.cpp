// Aggregation over queries (policies.md 5.4), three rows of two columns on paper.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>

#include "sim/policy/scoring.hpp"
#include "sim/stages/stages.hpp"
#include "tests/support/near.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

using test::near;

/// A row as it may come: in parts, the later columns first.
void add_in_parts(Aggregation& aggregation, int64_t j, const std::vector<double>& row,
                  int64_t visible) {
  aggregation.see(j, visible);
  const std::span<const double> all = row;
  aggregation.add(j, 1, all.subspan(1));
  aggregation.add(j, 0, all.first(1));
}

/// Rows (1,8), (3,2), (2,5), all columns visible to all queries.
std::vector<double> aggregated(const std::string& changes, size_t rows = 3) {
  const std::vector<std::vector<double>> all = {{1, 8}, {3, 2}, {2, 5}};
  const Settings settings = test::settings_with(changes);
  const auto aggregation = Kinds<Aggregate>::find(settings.text("aggregate"))
                               .start(settings, static_cast<int64_t>(rows), 2);
  for (size_t j = 0; j < rows; ++j) add_in_parts(*aggregation, static_cast<int64_t>(j), all[j], 2);
  std::vector<double> result(2);
  aggregation->finish(result);
  return result;
}

TEST_CASE("mean, sum, max, last and single take what their names say", "[stages]") {
  CHECK_THAT(aggregated("aggregate=mean"), near({2, 5}));
  CHECK_THAT(aggregated("aggregate=sum"), near({6, 15}));
  CHECK_THAT(aggregated("aggregate=max"), near({3, 8}));  // DefensiveKV Eq. 5
  CHECK_THAT(aggregated("aggregate=last"), near({2, 5}));
  CHECK_THAT(aggregated("aggregate=single,single_row=1"), near({3, 2}));
  CHECK_THAT(aggregated("aggregate=single,single_row=0"), near({1, 8}));
}

TEST_CASE("a power mean stands between the mean and the maximum", "[stages]") {
  // Squares 1, 9, 4 and 64, 4, 25 over three rows; what is negative counts as nothing.
  CHECK_THAT(aggregated("aggregate=power-mean,power=1"), near({2, 5}));
  CHECK_THAT(aggregated("aggregate=power-mean,power=2"),
             near({std::sqrt(14.0 / 3), std::sqrt(31)}));
  const auto aggregation =
      Kinds<Aggregate>::find("power-mean").start(test::settings_with("power=2"), 2, 2);
  add_in_parts(*aggregation, 0, {-3, 4}, 2);
  add_in_parts(*aggregation, 1, {2, -1}, 2);
  std::vector<double> result(2);
  aggregation->finish(result);
  CHECK_THAT(result, near({std::sqrt(2.0), std::sqrt(8.0)}));
}

TEST_CASE("the moving average weighs the newest row with alpha", "[stages]") {
  // ReST-KV Eq. 9, alpha 1/4: 1, 3/4 + 3/4 = 3/2, 2/4 + 9/8 = 13/8; 8, 13/2, 5/4 + 39/8 = 49/8.
  CHECK_THAT(aggregated("aggregate=ema,ema_alpha=0.25"), near({13.0 / 8, 49.0 / 8}));
  CHECK_THAT(aggregated("aggregate=ema,ema_alpha=1"), near({2, 5}));
}

TEST_CASE("the inverse moving average runs from the newest row to the oldest", "[stages]") {
  // ReST-KV Table 13, alpha 1/2: 2, 5/2, 7/4; 5, 7/2, 23/4.
  CHECK_THAT(aggregated("aggregate=ema-inverse,ema_alpha=0.5"), near({7.0 / 4, 23.0 / 4}));
  CHECK_THAT(aggregated("aggregate=ema-inverse,ema_alpha=0.5", 1), near({1, 8}));
}

TEST_CASE("linear weights rise from one to the weight of the newest row", "[stages]") {
  // PyramidInfer: weights 1, 3/2, 2 over 3: (1 + 9/2 + 4)/3, (8 + 3 + 10)/3.
  CHECK_THAT(aggregated("aggregate=linear,linear_newest=2"), near({9.5 / 3, 7}));
  CHECK_THAT(aggregated("aggregate=linear,linear_newest=2", 1), near({2, 16}));  // M = 1
}

TEST_CASE("mean-variance adds gamma times the sample variance", "[stages]") {
  // CAKE Eq. 8: variances 1 and 9, divisor M - 1; one row has none.
  CHECK_THAT(aggregated("aggregate=mean-variance,variance_weight=2"), near({4, 23}));
  CHECK_THAT(aggregated("aggregate=mean-variance,variance_weight=2", 1), near({1, 8}));
}

TEST_CASE("mean-visible divides by the number of queries that see the entry", "[stages]") {
  // kvpress ObservedAttention: queries 0, 1, 2 see 1, 2, 3 columns.
  const Settings settings = test::settings_with("aggregate=mean-visible");
  const auto aggregation = Kinds<Aggregate>::find("mean-visible").start(settings, 3, 3);
  add_in_parts(*aggregation, 0, {6, 0, 0}, 1);
  add_in_parts(*aggregation, 1, {3, 4, 0}, 2);
  add_in_parts(*aggregation, 2, {0, 2, 5}, 3);
  std::vector<double> result(3);
  aggregation->finish(result);
  CHECK_THAT(result, near({3, 3, 5}));
}

TEST_CASE("the drift is the way of the best entries from the later rows back to the earlier",
          "[stages]") {
  // ReST-KV Eq. 10, K = 2 of 4 columns, M = 3: best {2,3}, {1,2}, {0,1}: means 5/2, 3/2, 1/2;
  // front = the first floor(3/2) = 1 row, rear = the other two: 5/2 - 1 = 3/2.
  DriftTracker tracker({2, 0}, 3);
  tracker.add(0, std::vector<double>{0, 1, 5, 4});
  tracker.add(1, std::vector<double>{0, 4, 5, 1});
  tracker.add(2, std::vector<double>{5, 4, 1, 0});
  CHECK(tracker.drift(0).value() == 1.5);
  CHECK(tracker.drift(1).sign() == 0);  // no free slot, no drift
}

TEST_CASE("a tie for the last of the best goes to the more recent column; one row has no drift",
          "[stages]") {
  DriftTracker tracker({1}, 2);
  tracker.add(0, std::vector<double>{7, 7, 7});
  tracker.add(1, std::vector<double>{7, 7, 0});
  CHECK(tracker.drift(0).value() == 2 - 1);
  DriftTracker alone({1}, 1);
  alone.add(0, std::vector<double>{7, 7, 7});
  CHECK(alone.drift(0).sign() == 0);
}

TEST_CASE("drifts of many K at once are those of sorted rows, whatever the scores", "[stages]") {
  const std::vector<int64_t> best = {40, 1, 300, 0, 7, 40, 1000};
  constexpr size_t kColumns = 300, kRows = 4;
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  DriftTracker tracker(best, kRows);
  std::vector<double> front(best.size()), rear(best.size());
  for (size_t j = 0; j < kRows; ++j) {
    std::vector<double> row(kColumns);
    for (double& x : row) x = std::pow(10.0, 8 * normal(random)) * (j == 1 ? -1 : 1);
    for (size_t i = 0; i < kColumns; i += 5) row[i] = i % 2 == 0 ? 0.0 : -0.0;
    for (size_t i = 2; i < kColumns; i += 7) row[i] = 0.25;
    row[17] = INFINITY;
    tracker.add(static_cast<int64_t>(j), row);
    std::vector<size_t> order(kColumns);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(
        order, [&](size_t a, size_t b) { return row[a] != row[b] ? row[a] > row[b] : a > b; });
    for (size_t x = 0; x < best.size(); ++x) {
      const size_t count = std::min(static_cast<size_t>(best[x]), kColumns);
      for (size_t i = 0; i < count; ++i)
        (j < 2 ? front : rear)[x] += static_cast<double>(order[i]) / static_cast<double>(count) / 2;
    }
  }
  for (size_t x = 0; x < best.size(); ++x)
    CHECK(tracker.drift(x).value() == Approx(front[x] - rear[x]).margin(1e-9));
}

}  // namespace
}  // namespace kvsim
