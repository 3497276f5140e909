#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>

#include "analysis/statistics.hpp"
#include "sim/core/numbers.hpp"

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
      const Interval found = estimate(values, Units::traces, Scale::plain).interval;
      held += found.low <= 0 && 0 <= found.high;
    }
    INFO(count);
    CHECK(std::abs(held / double{kRuns} - 0.95) < 0.012);  // 3.5 standard errors of the share
  }
  CHECK(std::isnan(estimate(std::vector<double>{1}, Units::traces, Scale::plain).interval.low));
}

namespace {

/// T steps of a process with correlation `rho` between neighbours, normal or log-normal.
std::vector<double> autocorrelated(uint64_t run, uint64_t steps, double rho, bool skewed) {
  constexpr uint64_t kBefore = 100;
  std::vector<double> values;
  double state = 0;
  for (uint64_t t = 0; t < kBefore + steps; ++t) {
    const double radius = std::sqrt(-2 * std::log(1 - uniform(9, run, t, 0)));
    const double normal = radius * std::cos(2 * std::numbers::pi * uniform(9, run, t, 1));
    state = rho * state + std::sqrt(1 - rho * rho) * normal;
    if (t >= kBefore) values.push_back(skewed ? std::exp(0.5 * state) : state);
  }
  return values;
}

/// Share of 1000 series whose interval holds the true mean.
double coverage(uint64_t steps, double rho, bool skewed) {
  constexpr uint64_t kRuns = 1000;
  const double truth = skewed ? std::exp(0.125) : 0;
  int held = 0;
  for (uint64_t run = 0; run < kRuns; ++run) {
    const std::vector<double> values = autocorrelated(run, steps, rho, skewed);
    const Interval found =
        estimate(values, Units::steps, skewed ? Scale::log : Scale::plain).interval;
    held += found.low <= truth && truth <= found.high;
  }
  return held / double{kRuns};
}

}  // namespace

// Squared stream errors of the sample's 208 later steps have correlations of 0.45 to 0.65 between
// neighbours, of 0.2 to 0.5 two steps apart.
TEST_CASE("intervals over the steps of one trace hold the true mean", "[analysis]") {
  // The figures of metrics.md 6. Series are drawn by hash; a library's logarithm may move one of
  // them.
  const auto held = [](double share) { return Approx(share).margin(0.003); };
  CHECK(coverage(208, 0, false) == held(0.950));
  CHECK(coverage(208, 0.5, false) == held(0.934));
  CHECK(coverage(208, 0.65, false) == held(0.920));
  CHECK(coverage(208, 0, true) == held(0.958));
  CHECK(coverage(208, 0.5, true) == held(0.918));
  CHECK(coverage(208, 0.65, true) == held(0.904));
  CHECK(coverage(512, 0.65, true) == held(0.919));
  CHECK(coverage(64, 0.5, true) == held(0.879));
}

TEST_CASE("first and last steps count as often as any other", "[analysis]") {
  std::vector<double> values(200, 1.0);
  for (size_t t = 0; t < 10; ++t) values[t] = values[199 - t] = 3;
  const Bounded found = estimate(values, Units::steps, Scale::plain);
  CHECK(found.value == Approx(1.2));
  CHECK(found.interval.high - found.value == Approx(found.value - found.interval.low));
  double sum = 0;
  resample(200, Units::steps, block_length(values), 0, [&](std::span<const int64_t> drawn) {
    for (const int64_t t : drawn) sum += values[static_cast<size_t>(t)];
  });
  CHECK(sum / 200000 == Approx(1.2).epsilon(0.01));
}

TEST_CASE("blocks are as long as a series is correlated", "[analysis]") {
  CHECK(block_length(std::vector<double>(50, 2.0)) == 1);
  CHECK(block_length(std::vector<double>{1, 2}) == 1);
  CHECK(block_length(autocorrelated(1, 208, 0, false)) < 6);
  const int64_t long_ones = block_length(autocorrelated(1, 208, 0.8, false));
  CHECK(long_ones > 8);
  CHECK(long_ones <= 44);  // the least of 3 sqrt(T) and T / 3, rounded up
}

TEST_CASE("the error of a mean by circular blocks is that of their resamples", "[analysis]") {
  const std::vector<double> values = autocorrelated(2, 208, 0.6, false);
  std::vector<double> means;
  resample(208, Units::steps, 8, 4, [&](std::span<const int64_t> drawn) {
    double sum = 0;
    for (const int64_t t : drawn) sum += values[static_cast<size_t>(t)];
    means.push_back(sum / 208);
  });
  double squares = 0;
  for (const double one : means) squares += (one - mean(values)) * (one - mean(values));
  CHECK(std::sqrt(squares / 1000) == Approx(block_error(values, 8)).epsilon(0.07));
}

TEST_CASE("intervals stay where numbers can be", "[analysis]") {
  const std::vector<double> errors = {0.01, 0.02, 0.9};
  const Bounded on_logs = estimate(errors, Units::traces, Scale::log);
  CHECK(on_logs.value == Approx(std::cbrt(0.01 * 0.02 * 0.9)));
  CHECK(on_logs.interval.low > 0);
  const Bounded share = estimate(std::vector<double>{0.99, 1, 0.7}, Units::traces, Scale::share);
  CHECK(share.value == Approx(2.69 / 3));
  CHECK(share.interval.low > 0);
  CHECK(share.interval.high <= 1);
  const Bounded nothing = estimate(std::vector<double>{0, 0}, Units::traces, Scale::log);
  CHECK(nothing.value == 0);
  CHECK(nothing.interval.high == 0);
  const Bounded whole = estimate(std::vector<double>(30, 1.0), Units::steps, Scale::share);
  CHECK(whole.interval.low == 1);
  CHECK(whole.interval.high == 1);
}

TEST_CASE("paired differences take out what two series share", "[analysis]") {
  std::vector<double> one, other;
  for (uint64_t t = 0; t < 100; ++t) {
    other.push_back(1 + uniform(1, 0, 0, t));
    one.push_back(1.1 * other.back());
  }
  const Bounded ratio = paired(one, other, Units::steps, Scale::log);
  CHECK(ratio.value == Approx(1.1));
  CHECK(ratio.interval.low == Approx(1.1));
  CHECK(ratio.interval.high == Approx(1.1));
  CHECK(ratio.chance < 1e-6);
  CHECK(paired(one, other, Units::traces, Scale::log).value == Approx(1.1));
  CHECK(paired(one, one, Units::steps, Scale::plain).chance == 1);
  CHECK(paired({}, {}, Units::steps, Scale::log).value != 1);
}
