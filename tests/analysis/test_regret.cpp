#include <catch2/catch.hpp>

#include "analysis/formulas.hpp"

using namespace kvsim;

TEST_CASE("the min-max bound is the best worst step where steps disagree", "[analysis]") {
  // Two entries, two steps, one owner: each step lives on an entry of its own, so that with one
  // entry some step keeps only 0.2. Every mixture of steps bounds this by at least 0.5.
  ImportanceGains gains;
  gains.owners = {Table<float>(2, 2)};
  gains.owners[0].values() = {0.8f, 0.2f, 0.2f, 0.8f};
  gains.base = {0, 0};
  CHECK(minmax_bound(gains, 1) == Approx(0.5).margin(1e-6));
  CHECK(minmax_bound(gains, 2) == Approx(1));
  CHECK(minmax_bound(gains, 0) == 0);
}

TEST_CASE("the min-max bound is reached where one set is best at every step", "[analysis]") {
  ImportanceGains gains;
  gains.owners = {Table<float>(2, 3), Table<float>(2, 3)};
  gains.owners[0].values() = {0.3f, 0.1f, 0.1f, 0.2f, 0.1f, 0.1f};
  gains.owners[1].values() = {0.1f, 0.4f, 0.0f, 0.1f, 0.5f, 0.0f};
  gains.base = {0, 0};
  // Entry 0 of the first owner and 1 of the second: 0.7 and 0.7.
  CHECK(minmax_bound(gains, 1) == Approx(0.7));
}

TEST_CASE("what nobody may drop counts in the min-max bound", "[analysis]") {
  ImportanceGains gains;
  gains.owners = {Table<float>(1, 2)};
  gains.owners[0].values() = {0.2f, 0.3f};
  gains.base = {0.5};
  CHECK(minmax_bound(gains, 1) == Approx(0.8));
}
