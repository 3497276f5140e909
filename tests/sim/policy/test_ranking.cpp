// The one order of entries (policies.md 10): score, then the score before its prior where asked,
// then recency.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "sim/policy/policy_run.hpp"

namespace kvsim {

TEST_CASE("entries are ranked by score, then raw score, then recency, whatever the scores",
          "[policy]") {
  constexpr int64_t kEntries = 700;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  Table<double> score(3, kEntries), raw(3, kEntries);
  for (int64_t owner = 0; owner < 3; ++owner)
    for (int64_t i = 0; i < kEntries; ++i) {
      const double x = normal(random);
      score(owner, i) = owner == 0 ? x : owner == 1 ? std::round(2 * x) : std::pow(10, 40 * x);
      raw(owner, i) = std::round(normal(random));
    }
  score(0, 5) = INFINITY;
  score(0, 6) = -INFINITY;
  score(1, 7) = -0.0;
  score(1, 8) = 0.0;
  std::vector<uint8_t> candidate(kEntries, 1);
  for (size_t i = 0; i < kEntries; i += 13) candidate[i] = 0;
  for (const bool by_raw : {false, true}) {
    const Ranking ranking = rank(score, raw, by_raw, candidate);
    for (int64_t owner = 0; owner < 3; ++owner) {
      CAPTURE(by_raw, owner);
      std::vector<uint32_t> expected;
      for (uint32_t i = 0; i < kEntries; ++i)
        if (candidate[i]) expected.push_back(i);
      std::ranges::sort(expected, [&](uint32_t a, uint32_t b) {
        if (score(owner, a) != score(owner, b)) return score(owner, a) > score(owner, b);
        if (by_raw && raw(owner, a) != raw(owner, b)) return raw(owner, a) > raw(owner, b);
        return a > b;
      });
      CHECK(ranking.order[static_cast<size_t>(owner)] == expected);
    }
  }
  const Ranking nothing = rank(score, raw, false, std::vector<uint8_t>(kEntries, 0));
  CHECK(nothing.order[0].empty());
}

}  // namespace kvsim
