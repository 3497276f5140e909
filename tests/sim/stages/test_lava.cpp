// LAVa's weight and its budgets (policies.md 5.8 and 7), on paper.
#include <catch2/catch.hpp>

#include "tests/support/near.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

const std::string kLava = "snapkv,smooth=none,group=max,weight=value-l1-max,allocate=lava,window=1";

TEST_CASE("LAVa weighs a head's attention with its largest value before the window", "[stages]") {
  // A = 1, 2, 1 of 8 and 4 for the query itself; ||v||_1 = 1, 5, 2, and 9 in the window.
  test::SmallRun small;
  small.weights = {{{1, 2, 1, 4}}};
  small.values = {{{1}, {-5}, {2}, {9}}};
  CHECK_THAT(test::score_row(*small.build(), kLava, "2"), test::near({5.0 / 8, 10.0 / 8, 5.0 / 8}));
}

TEST_CASE("LAVa's heads share what their layer has, between its best entries and a floor",
          "[stages]") {
  // Both heads attend as 1, 2, 4, 8, 16; values of the second are ten times as large. Of H (B - m)
  // = 4 places it has the best four: 1 + round(0.8 * 4 + 0) = 4, the first 1 + 0.
  test::SmallRun small;
  small.prompt = 6;
  small.query_heads = small.kv_heads = 2;
  small.weights = {{{1, 2, 4, 8, 16, 1}}, {{1, 2, 4, 8, 16, 1}}};
  small.values = {test::Vectors(6, {1}), test::Vectors(6, {10})};
  const auto run = small.build();
  CHECK(test::kept_entries(*run, kLava, "3", 0) == std::vector<int>{5});
  CHECK(test::kept_entries(*run, kLava, "3", 1) == std::vector<int>{2, 3, 4, 5});
}

TEST_CASE("LAVa gives layers places by the entropy of their scores", "[stages]") {
  // All of layer 0's attention is on one entry, entropy 0; layer 1 attends evenly. It gets all of
  // the 2 (B - m) = 4 places, of which its candidates can take 4.
  test::SmallRun small;
  small.prompt = 6;
  small.layers = {0, 1};
  small.weights = {{{1e15, 1, 1, 1, 1, 1}}};
  const auto run = small.build();
  for (int64_t x = 0; x < run->info.head_dim; ++x)
    test::set_element(run->layers[1].q, 0, 0, x, 0.0f);
  CHECK(test::kept_entries(*run, kLava, "3", 0, 0) == std::vector<int>{5});
  CHECK(test::kept_entries(*run, kLava, "3", 0, 1) == std::vector<int>{2, 3, 4, 5});
}

}  // namespace
}  // namespace kvsim
