// merge_order=merge-first (policies.md 9): by hand, and against plain loops on random prompts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "sim/core/error.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/merge/merge.hpp"
#include "tests/support/random_trace.hpp"

using namespace kvsim;

namespace {

struct Prompt {
  std::vector<float> keys;
  int64_t dim = 2;
  std::vector<double> score;
  std::vector<uint32_t> order, guarded;

  /// Best first; equal: the more recent.
  void rank() {
    order.resize(score.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return score[a] != score[b] ? score[a] > score[b] : a > b;
    });
  }
  Clusters cluster(int64_t budget, double threshold) const {
    return merge_first({{keys.data(), dim, score, budget}, order, guarded, threshold});
  }
};

double cosine(const Prompt& p, size_t a, size_t b) {
  double product = 0, x = 0, y = 0;
  for (size_t c = 0; c < static_cast<size_t>(p.dim); ++c) {
    const double ka = static_cast<double>(p.keys[a * p.dim + c]);
    const double kb = static_cast<double>(p.keys[b * p.dim + c]);
    product += ka * kb;
    x += ka * ka;
    y += kb * kb;
  }
  return product / std::sqrt(x * y);
}

}  // namespace

TEST_CASE("merge-first: entries that neither would keep become one slot that stays",
          "[merge][stages]") {
  Prompt p;
  // 0, 1 and 2 point one way, 3 and 4 another; 1 + 2 + 0 score more than 4.
  p.keys = {1, 0, 2, 0.1f, 1, 0.05f, 0, 1, 0.1f, 1};
  p.score = {1, 2, 3, 9, 5};
  p.rank();
  const Clusters two = p.cluster(2, 0.8);
  // 0 joins 2 (0.9988 against 0.9988 of 1: nearer to 2), 1 joins 2, then 4 joins nothing: 2 + 3 + 4
  // are three, so 4, the lowest that nobody joined, joins 3.
  REQUIRE(two.pivot.size() == 2);
  std::vector<std::vector<uint32_t>> sets = two.sets;
  std::sort(sets.begin(), sets.end());
  CHECK(sets[0] == std::vector<uint32_t>{0, 1, 2});
  CHECK(sets[1] == std::vector<uint32_t>{3, 4});
  // Where nothing is alike, this is eviction by score.
  const Clusters none = p.cluster(2, 1.0);
  std::vector<uint32_t> kept = none.pivot;
  std::sort(kept.begin(), kept.end());
  CHECK(kept == std::vector<uint32_t>{3, 4});
  for (const auto& set : none.sets) CHECK(set.size() == 1);
}

TEST_CASE("merge-first: what is kept for sure is joined, but joins nothing", "[merge][stages]") {
  Prompt p;
  p.keys = {1, 0, 1, 0, 1, 0, 0, 1};
  p.score = {0, 0.5, 3, 4};
  p.rank();
  p.guarded = {0};
  const Clusters kept = p.cluster(2, 0.9);
  REQUIRE(kept.pivot.size() == 2);
  CHECK(kept.pivot[0] == 0);
  CHECK(kept.guarded == std::vector<uint32_t>{0});
  // 1 joins 2, the most recent of equally near keys; three slots are left, 2 was joined, 3 is
  // like nothing: 2 with 3.5 loses against 3 with 4.
  CHECK(kept.pivot[1] == 3);
}

TEST_CASE("merge-first keeps what plain loops over pairs keep", "[merge][stages]") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Prompt p;
    p.dim = 3;
    const size_t n = 24;
    for (size_t i = 0; i < n * 3; ++i)
      p.keys.push_back(static_cast<float>(test::normal(seed, 1, i)));
    for (size_t i = 0; i < n; ++i) p.score.push_back(std::fabs(test::normal(seed, 2, i)));
    p.rank();
    p.guarded = {0, 23};
    const int64_t budget = 3 + static_cast<int64_t>(seed) % 7;
    std::vector<size_t> joins(n);
    std::iota(joins.begin(), joins.end(), size_t{0});
    std::vector<bool> joined(n, false);
    size_t left = n;
    for (size_t rank = n; rank-- > 0 && static_cast<int64_t>(left) > budget;) {
      const size_t e = p.order[rank];
      if (e == 0 || e == 23 || joined[e]) continue;
      size_t best = n;
      for (size_t c = 0; c < n; ++c)
        if (c != e && joins[c] == c && (best == n || cosine(p, e, c) >= cosine(p, e, best)))
          best = c;
      if (best == n || cosine(p, e, best) <= 0.7) continue;
      joins[e] = best;
      joined[best] = true;
      --left;
    }
    std::vector<std::pair<double, size_t>> slots;
    for (size_t i = 0; i < n; ++i) {
      if (joins[i] != i) continue;
      double sum = i == 0 || i == 23 ? 1e9 : 0;
      for (size_t e = 0; e < n; ++e) sum += joins[e] == i ? p.score[e] : 0;
      slots.emplace_back(sum, i);
    }
    std::sort(slots.rbegin(), slots.rend());
    const Clusters kept = p.cluster(budget, 0.7);
    REQUIRE(kept.pivot.size() == std::min(slots.size(), static_cast<size_t>(budget)));
    for (size_t s = 0; s < kept.pivot.size(); ++s) {
      CAPTURE(seed, s);
      const auto at = std::find_if(slots.begin(), slots.begin() + budget,
                                   [&](const auto& slot) { return slot.second == kept.pivot[s]; });
      CHECK(at != slots.begin() + budget);
      for (const uint32_t e : kept.sets[s]) CHECK(joins[e] == kept.pivot[s]);
    }
  }
}

TEST_CASE("merge-first is refused where it has no meaning", "[merge][stages]") {
  for (const char* text :
       {"keepkv,merge_order=merge-first,schedule=decode", "snapkv,merge_order=merge-first",
        "convex,merge_order=merge-first,constrain=fair", "d2o,merge_order=merge-first"})
    CHECK_THROWS_AS(Record::parse(text), Error);
  CHECK(Record::parse("keepkv,merge_order=merge-first").canonical() ==
        "keepkv,merge_order=merge-first");
}
