#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/formulas.hpp"
#include "analysis/statistics.hpp"

using namespace kvsim;

namespace {
Moments moments_of(const std::vector<double>& values) {
  Moments moments;
  for (const double value : values) moments.add(value);
  return moments;
}
}  // namespace

TEST_CASE("Pearson and cosine from moments are those of the vectors", "[analysis]") {
  const std::vector<double> x = {0.1, 0.5, 0.05, 0.2, 0.9};
  const std::vector<double> y = {0.1, 0, 0, 0.2, 0.9};
  CHECK(importance_pearson(moments_of(x), moments_of(y), 5) == Approx(pearson(x, y)));
  CHECK(importance_cosine(moments_of(x), moments_of(y)) ==
        Approx(std::sqrt((0.01 + 0.04 + 0.81) / (0.01 + 0.25 + 0.0025 + 0.04 + 0.81))));
}

TEST_CASE("constant vectors correlate fully with themselves and not at all with others",
          "[analysis]") {
  const Moments constant = moments_of({0.5, 0.5});
  CHECK(importance_pearson(constant, constant, 2) == 1);
  CHECK(importance_pearson(constant, moments_of({0.5, 0}), 2) == 0);
  CHECK(importance_pearson(moments_of({0.5, 0.2}), moments_of({0, 0}), 2) == 0);
  CHECK(importance_cosine(Moments{}, Moments{}) == 1);
}
