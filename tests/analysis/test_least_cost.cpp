#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/best_setting.hpp"

using namespace kvsim;

TEST_CASE("the least cost lies on lines in logarithms between neighbours", "[analysis]") {
  // Error 1 at cost 1, 0.01 at cost 100: 0.1 at cost 10.
  CHECK(least_cost({{100, 0.01}, {1, 1}}, 0.1) == Approx(10));
  CHECK(least_cost({{1, 1}, {100, 0.01}}, 0.01) == Approx(100));
  CHECK(least_cost({{1, 1}, {100, 0.01}}, 2) == 1);  // the cheapest is good enough
  CHECK(std::isnan(least_cost({{1, 1}, {100, 0.01}}, 0.001)));
  CHECK(std::isnan(least_cost({}, 1)));
}

TEST_CASE("a point that costs more and is no better does not count", "[analysis]") {
  CHECK(least_cost({{1, 1}, {10, 2}, {100, 0.01}}, 0.1) == Approx(10));
  CHECK(least_cost({{1, 1}, {10, NAN}, {100, 0.01}}, 0.1) == Approx(10));
  CHECK(least_cost({{1, 1}, {8, 0}}, 0.5) == 8);  // nothing is lost: no line leads there
}
