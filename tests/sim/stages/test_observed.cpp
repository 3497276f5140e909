// Indicators of all observing queries at once (policies.md 5.2), on paper.
#include <catch2/catch.hpp>
#include <cmath>

#include "sim/core/error.hpp"
#include "sim/policy/record.hpp"
#include "tests/support/near.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

using test::near;

const double kQuarter = std::acos(0.0);

/// One head with these keys and one query of d = 2 per prompt position.
std::unique_ptr<test::RandomRun> two_dimensional(const test::Vectors& keys,
                                                 const test::Vectors& queries, double frequency) {
  test::SmallRun small;
  small.prompt = std::ssize(keys);
  small.keys = {keys};
  for (int64_t j = 0; j <= small.prompt; ++j) small.positions.push_back(j);
  auto run = small.build();
  run->info.rope.inv_freq = {frequency};
  for (int64_t j = 0; j < std::ssize(queries); ++j)
    for (int64_t x = 0; x < 2; ++x)
      test::set_element(
          run->layers[0].q, 0, j, x,
          static_cast<float>(queries[static_cast<size_t>(j)][static_cast<size_t>(x)]));
  return run;
}

std::vector<double> row_of(const test::RandomRun& run, const std::string& changes) {
  return test::score_row(run, "h2o," + changes, "1");
}

TEST_CASE("expected attention is the softmax of mean and variance of normal queries", "[stages]") {
  // First numbers ln 2 + s, ln 2 - s, ln 2 with s^2 = 6 ln 2: mean ln 2, variance 4 ln 2. So
  // ln E exp(qk) is ln 2 + 2 ln 2 for k = 1 and 2 ln 2 + 8 ln 2 for k = 2.
  const double two = std::log(2.0), s = std::sqrt(6 * two);
  const auto run = two_dimensional({{1, 0}, {0, 1}, {2, 0}}, {{two + s, 0}, {two - s, 0}, {two, 0}},
                                   0);
  CHECK_THAT(row_of(*run, "indicator=expected-attention"),
             near({8.0 / 1033, 1.0 / 1033, 1024.0 / 1033}));
  CHECK_THAT(row_of(*run, "indicator=expected-attention,expected_variance=no"),
             near({2.0 / 7, 1.0 / 7, 4.0 / 7}));
}

TEST_CASE("sinks take no part in expected attention, neither as queries nor as entries",
          "[stages]") {
  // The queries at 1 and 2 are (ln 3, 0); that at 0 would change the mean.
  const double three = std::log(3.0);
  const auto run = two_dimensional({{9, 0}, {1, 0}, {2, 0}}, {{7, 7}, {three, 0}, {three, 0}}, 0);
  CHECK_THAT(row_of(*run, "indicator=expected-attention,sinks=1"), near({0, 3.0 / 12, 9.0 / 12}));
}

TEST_CASE("expected attention averages the rotation over later positions", "[stages]") {
  // A quarter turn a position. The query (0, -2 ln 3) at 3 was (2 ln 3, 0) before its rotation; at
  // 4 and 5 it is (2 ln 3, 0) and (0, 2 ln 3): (ln 3, ln 3) in the mean.
  const double c = 2 * std::log(3.0);
  const auto run = two_dimensional({{1, 0}, {0, 1}, {1, 1}, {0, 0}},
                                   {{5, 5}, {5, 5}, {5, 5}, {0, -c}}, kQuarter);
  const std::string last = "queries=last,last_queries=1,indicator=expected-attention,";
  CHECK_THAT(row_of(*run, last + "expected_steps=2"),
             near({3.0 / 16, 3.0 / 16, 9.0 / 16, 1.0 / 16}));
  CHECK_THAT(row_of(*run, last + "expected_steps=1"),
             near({9.0 / 20, 1.0 / 20, 9.0 / 20, 1.0 / 20}));
}

TEST_CASE("the trigonometric score turns the mean query to the distances ahead", "[stages]") {
  // The same query at n + 1 = 5 is (0, c): c times 0, 1, 3, 0, of mean c and variance 6/4 c^2.
  const auto run = two_dimensional({{1, 0}, {0, 1}, {0, 3}, {0, 0}},
                                   {{5, 5}, {5, 5}, {5, 5}, {0, -2}}, kQuarter);
  const double unit = 1 / std::sqrt(1.5);
  CHECK_THAT(row_of(*run, "queries=last,last_queries=1,indicator=trigonometric,"
                          "trigonometric_reach=1"),
             near({-unit, 0, 2 * unit, -unit}));
}

TEST_CASE("queries that cancel score keys by their length", "[stages]") {
  // (2, 0) and (-2, 0): the mean is 0, the mean length 2. Lengths 1, 1, 3, 0 have mean 5/4 and
  // variance 19/16.
  const auto run = two_dimensional({{1, 0}, {0, 1}, {0, 3}, {0, 0}},
                                   {{2, 0}, {-2, 0}, {0, 2}, {0, -2}}, 0);
  const double unit = 1 / std::sqrt(19.0);
  CHECK_THAT(row_of(*run, "indicator=trigonometric"), near({-unit, -unit, 7 * unit, -5 * unit}));
}

TEST_CASE("elimination lets go first what the output misses least, given what has gone",
          "[stages]") {
  // One query sees four entries alike; values 1, 1, -1, -4 have the mean -3/4. Without 1, -1 or -4
  // the mean of the rest is 7/12, 1/12 or 13/12 off: -1 goes first. Of 1, 1, -4 a 1 leaves -3/2,
  // which is 3/4 off, -4 leaves 7/4: a 1 goes, the older one. Of 1, -4 now -4 goes: it leaves 1,
  // 7/4 off, where -4 alone were 13/4 off. Without the last one nothing would be left.
  test::SmallRun small;
  small.prompt = 4;
  small.keys = {{{0}, {0}, {0}, {0}}};
  small.values = {{{1}, {1}, {-1}, {-4}}};
  const std::vector<double> row = row_of(*small.build(),
                                         "queries=last,last_queries=1,indicator=elimination");
  REQUIRE(row.size() == 4);
  const auto grown = [](double with, double without) {
    return std::sqrt(with * with - without * without);
  };
  CHECK(row[2] == Approx(1.0 / 12));
  CHECK(row[0] == Approx(grown(3.0 / 4, 1.0 / 12)));
  CHECK(row[3] == Approx(grown(7.0 / 4, 3.0 / 4)));
  CHECK(std::isinf(row[1]));
}

TEST_CASE("compactor adds leverage of the keys to attention among the neighbours", "[stages]") {
  // Keys less their mean are (3, 0), (-3, 0), (0, 1), (0, -1): the Gram matrix is diag(18, 2), so
  // leverage is 9/18.01 or 1/2.01. Queries are 0: each gives 1/2 to both of its chunk of two, so
  // that all sums are 1; pooled 2/3, 1, 1, 2/3 (values have length 1).
  const auto run = two_dimensional({{3, 0}, {-3, 0}, {0, 1}, {0, -1}},
                                   {{0, 0}, {0, 0}, {0, 0}, {0, 0}}, 0);
  const std::string exact = "indicator=compactor,compactor_sketch=0,compactor_chunk=2,";
  // Standardised (divisor 3): deviations of +-x in all four are x / (x sqrt(4/3)) = sqrt(3)/2.
  const double unit = std::sqrt(3.0) / 2;
  CHECK_THAT(row_of(*run, exact + "compactor_blend=0"), near({-unit, unit, unit, -unit}));
  CHECK_THAT(row_of(*run, exact + "compactor_blend=2"), near({unit, 3 * unit, -unit, -3 * unit}));
}

TEST_CASE("compactor fills a short chunk with zeros, and gives the ends the largest score",
          "[stages]") {
  // A sink and one recent entry are not scored; chunks are {1, 2} and {3, zero}. Queries are 0 but
  // that at 3, which gives 3 to its key and 1 to the zero: sums 1, 1 and 3/4 + 1/2. Pooled 8/12,
  // 13/12, 9/12: mean 10/12, deviation sqrt(7)/12.
  const auto run = two_dimensional({{3, 0}, {1, 0}, {5, 0}, {1, 0}, {0, 1}},
                                   {{0, 0}, {0, 0}, {0, 0}, {std::log(3.0), 0}, {0, 0}}, 0);
  const double unit = 1 / std::sqrt(7.0);
  CHECK_THAT(row_of(*run, "indicator=compactor,compactor_sketch=0,sinks=1,recent=1,"
                          "compactor_chunk=2,compactor_blend=0"),
             near({3 * unit, -2 * unit, 3 * unit, -unit, 3 * unit}));
}

TEST_CASE("compactor's weight of leverage is the share that is dropped", "[stages]") {
  const auto run = two_dimensional({{3, 0}, {-3, 0}, {0, 1}, {0, -1}},
                                   {{0, 0}, {0, 0}, {0, 0}, {0, 0}}, 0);
  const std::string record = "h2o,indicator=compactor,compactor_sketch=0,compactor_chunk=2";
  const double unit = std::sqrt(3.0) / 2;
  const auto at = [&](const std::string& budget) { return test::score_row(*run, record, budget); };
  CHECK_THAT(at("0.75"), near({-0.75 * unit, 1.25 * unit, 0.75 * unit, -1.25 * unit}));
  CHECK_THAT(at("1"), near({-0.25 * unit, 1.75 * unit, 0.25 * unit, -1.75 * unit}));
}

TEST_CASE("indicators of all queries at once need observing queries of the prompt", "[stages]") {
  CHECK_THROWS_AS(Record::parse("knorm,indicator=expected-attention"), Error);
  CHECK_THROWS_AS(Record::parse("oracle-mean,indicator=trigonometric"), Error);
  CHECK_THROWS_AS(Record::parse("h2o,indicator=compactor,granularity=query"), Error);
  CHECK_THROWS_AS(Record::parse("snapkv,indicator=trigonometric,aggregate=max"), Error);
  CHECK_NOTHROW(Record::parse("snapkv,indicator=trigonometric,order=sga"));
}

}  // namespace
}  // namespace kvsim
