// Indicators (policies.md 5.2), computed on paper on attention that is written down.
#include <catch2/catch.hpp>
#include <cmath>

#include "sim/core/numbers.hpp"
#include "tests/support/near.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

using test::near;
using test::Vectors;

/// n = 5, one head; the query at 4 gives weights 1, 2, 4, 8 and 1 to itself: A = w / 16.
test::SmallRun one_query() {
  test::SmallRun small;
  small.prompt = 5;
  small.weights = {{{1, 2, 4, 8, 1}}};
  return small;
}

std::vector<double> scores(const test::SmallRun& small, const std::string& changes,
                           int64_t owner = 0) {
  return test::score_row(*small.build(), "snapkv,smooth=none,window=1," + changes, "2", owner);
}

TEST_CASE("attention is the softmax over everything visible, not renormalised over candidates",
          "[stages]") {
  // SnapKV Eq. 1: columns outside C (the query's own) are cut after the softmax.
  CHECK_THAT(scores(one_query(), "indicator=attention"),
             near({1.0 / 16, 2.0 / 16, 4.0 / 16, 8.0 / 16}));
}

TEST_CASE("exp-logit is one for the head's largest logit", "[stages]") {
  // KeepKV code: exp(l - max l); the largest candidate has weight 8.
  CHECK_THAT(scores(one_query(), "indicator=exp-logit"), near({0.125, 0.25, 0.5, 1}));
}

TEST_CASE("below-mean counts entries that get less than an even share", "[stages]") {
  // Scissorhands Algorithm 2: 1/|V| = 1/5; 1/16 and 2/16 are below, 4/16 and 8/16 are not.
  CHECK_THAT(scores(one_query(), "indicator=below-mean"), near({-1, -1, 0, 0}));
}

TEST_CASE("importance multiplies attention with the L1 norm after the output projection",
          "[stages]") {
  // DefensiveKV 3.1: I = A ||v W||_1. W = (1 2; 0 -1): (1,0)W = (1,2), (0,3)W = (0,-3),
  // (2,2)W = (2,2), (-1,1)W = (-1,-3).
  test::SmallRun small = one_query();
  small.values = {{{1, 0}, {0, 3}, {2, 2}, {-1, 1}}};
  small.output = {{{1, 2}, {0, -1}}};
  CHECK_THAT(scores(small, "indicator=importance"),
             near({3.0 / 16, 6.0 / 16, 16.0 / 16, 32.0 / 16}));
}

TEST_CASE("attention-value multiplies attention with the L2 norm of the bare value", "[stages]") {
  // ReST-KV Table 12: A ||v||_2; norms 5, 1, 0, 13.
  test::SmallRun small = one_query();
  small.values = {{{3, 4}, {0, -1}, {0, 0}, {5, 12}}};
  small.output = {{{7, 0}, {0, 7}}};  // must not matter
  CHECK_THAT(scores(small, "indicator=attention-value"), near({5.0 / 16, 2.0 / 16, 0, 104.0 / 16}));
}

TEST_CASE("unmasked attention is that on the whole prompt, entries after the query included",
          "[stages]") {
  // Attention Matching: root mean squares over queries and heads. Queries are 0, so that each of
  // three entries has 1/3, at any query; one that prefers entry 2 by 7 has 1, 1 and 7 of 9.
  test::SmallRun small;
  small.prompt = 3;
  small.query_heads = 2;
  small.positions = {0, 1, 2, 3};
  small.weights = {{{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, {{1, 1, 7}, {1, 1, 7}, {1, 1, 7}}};
  const double few = std::sqrt((1.0 / 9 + 1.0 / 81) / 2);
  CHECK_THAT(test::score_row(*small.build(), "attention-matching,allocate=uniform", "1"),
             near({few, few, std::sqrt((1.0 / 9 + 49.0 / 81) / 2)}));
}

TEST_CASE("value-change-mean is the error of the output before the projection", "[stages]") {
  // CAOTE: shares 1, 2, 4, 8 of 15 after normalising over the candidates, values 15, 0, 0, 0:
  // the output is 1. Errors: 1/14 * 14, 2/13, 4/11, 8/7.
  test::SmallRun small = one_query();
  small.values = {{{15}, {0}, {0}, {0}, {9}}};
  small.output = {{{7}}};  // must not matter
  CHECK_THAT(scores(small, "indicator=value-change-mean"), near({1, 2.0 / 13, 4.0 / 11, 8.0 / 7}));
}

TEST_CASE("cur multiplies shares of squared norms within a block", "[stages]") {
  // Keys of squared length 1, 3, 4, 0, 5 and values of 1, 1, 2, 2, 6 in one block of 16: products
  // 1, 3, 8, 0, 30, of 42 in all.
  test::SmallRun small;
  small.prompt = 5;
  const double three = std::sqrt(3.0), two = std::sqrt(2.0), five = std::sqrt(5.0);
  small.keys = {{{1, 0}, {three, 0}, {0, 2}, {0, 0}, {five, 0}}};
  small.values = {{{1}, {-1}, {two}, {-two}, {std::sqrt(6.0)}}};
  CHECK_THAT(test::score_row(*small.build(), "knorm,indicator=cur", "2"),
             near({1.0 / 42, 3.0 / 42, 8.0 / 42, 0, 30.0 / 42}));
}

TEST_CASE("importance-share divides by the importance of all heads and candidates", "[stages]") {
  // metrics.md 7, oracle-mean. Heads 0 and 1 share a KV head: weights (1,1,.) of 4 and (1,3,.)
  // of 8, values 1. Z = 2/4 + 4/8 = 1; group=sum: (1/4 + 1/8, 1/4 + 3/8).
  test::SmallRun small;
  small.prompt = 3;
  small.query_heads = 2;
  small.weights = {{{1, 1, 2}}, {{1, 3, 4}}};
  CHECK_THAT(scores(small, "indicator=importance-share,group=sum"), near({3.0 / 8, 5.0 / 8}));
  small.values = {{{0}, {0}, {1}}};  // Z = 0 over the candidates: 0, not 0/0
  CHECK_THAT(scores(small, "indicator=importance-share,group=sum"), near({0, 0}));
}

TEST_CASE("output-change is the exact change of the output when one entry is removed", "[stages]") {
  // ReST-KV Eq. 7: A/(1-A) ||(z - v) W||_2. A = (1/2, 1/4, 1/4 of the query itself), v = 4, 0, 0:
  // z = 2. Without entry 0: z' = 0, change 2 = (1/2)/(1/2) |2-4|. Without entry 1: weights 2/3,
  // 1/3: z' = 8/3, change 2/3 = (1/4)/(3/4) |2-0|. W = 3 triples both.
  test::SmallRun small;
  small.prompt = 3;
  small.weights = {{{2, 1, 1}}};
  small.values = {{{4}, {0}, {0}}};
  small.output = {{{3}}};
  CHECK_THAT(scores(small, "indicator=output-change"), near({6, 2}));
}

TEST_CASE("output-change keeps its odds when an entry holds nearly all attention", "[stages]") {
  // 1 - A is 1e-6/(1 + 1e-6) here; float32 would give 9.5e-7 or 1.07e-6. A/(1-A) = 1e6 and z - v
  // = -1e-6/(1+1e-6) (v = 1 against 0): the product is 1/(1 + 1e-6).
  test::SmallRun small;
  small.prompt = 2;
  small.weights = {{{1e6, 1}}};
  small.values = {{{1}, {0}}};
  const auto scored = test::scores_of(*small.build(), "restkv,smooth=none,window=1", "1");
  CHECK(scored->score(0, 0) == Approx(1).epsilon(2e-3));
}

TEST_CASE("removing the only visible entry changes the output without bound", "[stages]") {
  // policies.md 5.2: nothing but i is visible: +inf. Only query 0 sees nothing but itself.
  test::SmallRun small;
  small.prompt = 3;
  small.positions = {0, 1, 2, 3};
  const auto scored = test::scores_of(*small.build(), "h2o,indicator=output-change,aggregate=max",
                                      "1");
  CHECK(std::isinf(scored->score(0, 0)));
  CHECK(scored->score(0, 0) > 0);
  CHECK_FALSE(std::isinf(scored->score(0, 1)));
}

TEST_CASE("output-change-joint adds the heads' changes before it takes the norm", "[stages]") {
  // policies.md 5.2: two heads with equal attention (2,1,1) and W = 1 and -1 cancel; with W = 1
  // and 2 they add to 2 + 4 and 2/3 + 4/3.
  test::SmallRun small;
  small.prompt = 3;
  small.query_heads = 2;
  small.weights = {{{2, 1, 1}}, {{2, 1, 1}}};
  small.values = {{{4}, {0}, {0}}};
  small.output = {{{1}}, {{-1}}};
  CHECK_THAT(scores(small, "indicator=output-change-joint"), near({0, 0}));
  CHECK_THAT(scores(small, "indicator=output-change"), near({2, 2.0 / 3}));
  small.output = {{{1}}, {{2}}};
  CHECK_THAT(scores(small, "indicator=output-change-joint"), near({6, 2}));
}

TEST_CASE("output-change-mean aggregates attention first and leaves the window out of its mean",
          "[stages]") {
  // ReST-KV code: two rows (2,1,1,0) and (0,1,1,2) of 4 over candidates 0 and 1: a = (1/4, 1/4).
  // z = (4 + 8)/4 = 3, not renormalised. (1/3)|3-4| = 1/3, (1/3)|3-8| = 5/3.
  test::SmallRun small;
  small.prompt = 4;
  small.positions = {2, 3, 4};
  small.weights = {{{2, 1, 1}, {0, 1, 1, 2}}};
  small.values = {{{4}, {8}, {100}, {100}}};
  CHECK_THAT(test::score_row(*small.build(),
                             "snapkv,smooth=none,window=2,indicator=output-change-mean", "3"),
             near({1.0 / 3, 5.0 / 3}));
}

TEST_CASE("key-norm prefers small keys", "[stages]") {
  // Devoto et al. (Knorm): -||k||.
  test::SmallRun small;
  small.prompt = 3;
  small.keys = {{{3, 4}, {0, 0}, {0, -2}}};
  CHECK_THAT(test::score_row(*small.build(), "knorm", "2"), near({-5, 0, -2}));
  CHECK(test::kept_entries(*small.build(), "knorm", "2") == std::vector<int>{1, 2});
}

TEST_CASE("key-difference is minus the cosine with the mean direction of the keys", "[stages]") {
  // KeyDiff: directions (1,0), (1,0), (0,1), and a zero key counts as 0: a = (2,1)/4, cosines
  // 2/sqrt5, 2/sqrt5, 1/sqrt5; with a zero vector 0.
  test::SmallRun small;
  small.prompt = 4;
  small.keys = {{{5, 0}, {2, 0}, {0, 3}, {0, 0}}};
  const double root = std::sqrt(5.0);
  CHECK_THAT(test::score_row(*small.build(), "keydiff", "2"),
             near({-2 / root, -2 / root, -1 / root, 0}));
}

TEST_CASE("lag ranks a block's entries by their spread relative to the next block", "[stages]") {
  // LagKV: s = 1, b = 2, n = 7, so blocks {1,2}, {3,4}, {5,6}; the last one and the sink get 1.
  // Block {3,4} spans [0,1] x [0,2] in keys and values alike: entry 1 = (1,2) becomes (1,1),
  // deviation 0; entry 2 = (1,0) becomes (1,0), deviation sqrt(1/2): rank 0 and 1 of 2.
  // Block {5,6} spans [0,1] x [0,1]: entry 3 = (0,0) has deviation 0, entry 4 = (1,2) has more.
  test::SmallRun small;
  small.prompt = 7;
  small.keys = {{{9, 9}, {1, 2}, {1, 0}, {0, 0}, {1, 2}, {0, 1}, {1, 0}}};
  small.values = small.keys;
  CHECK_THAT(test::score_row(*small.build(), "lagkv,sinks=1,lag_block=2", "4"),
             near({1, 0, 0.5, 0, 0.5, 1, 1}));
}

TEST_CASE("lag gives the more recent of two equal entries the higher rank", "[stages]") {
  test::SmallRun small;
  small.prompt = 4;
  small.keys = {{{1, 1}, {1, 1}, {0, 0}, {2, 2}}};
  small.values = small.keys;
  CHECK_THAT(test::score_row(*small.build(), "lagkv,sinks=0,lag_block=2", "2"),
             near({0, 0.5, 1, 1}));
}

TEST_CASE("lag falls back to recency when two blocks do not fit behind the sinks", "[stages]") {
  test::SmallRun small;
  small.prompt = 4;
  CHECK_THAT(test::score_row(*small.build(), "lagkv,sinks=1,lag_block=2", "2"), near({0, 1, 2, 3}));
}

TEST_CASE("position scores by recency and random by seed, layer, head and position", "[stages]") {
  test::SmallRun small;
  small.prompt = 3;
  small.query_heads = small.kv_heads = 2;
  const auto run = small.build();
  CHECK_THAT(test::score_row(*run, "streaming", "2"), near({0, 1, 2}));
  const auto drawn = test::scores_of(*run, "random", "2", 7);
  for (int64_t owner = 0; owner < 2; ++owner)
    for (int64_t i = 0; i < 3; ++i)
      CHECK(drawn->score(owner, i) ==
            uniform(7, 0, static_cast<uint64_t>(owner), static_cast<uint64_t>(i)));
}

TEST_CASE("random numbers are the ones the rules define", "[stages]") {
  // SplitMix64 from 0: the first published output; u(0,0,0,0) is four steps, top 53 bits.
  CHECK(split_mix(0) == 0xE220A8397B1DCDAFull);
  uint64_t x = 0;
  for (int step = 0; step < 4; ++step) x = split_mix(x);
  CHECK(uniform(0, 0, 0, 0) == static_cast<double>(x >> 11) / 9007199254740992.0);
  CHECK(uniform(1, 0, 0, 0) != uniform(0, 1, 0, 0));
}

TEST_CASE("external scores are read per KV head", "[stages]") {
  test::SmallRun small;
  small.prompt = 3;
  test::MadeUpFiles files;
  files.layer_scores[0] = Table<double>(1, 3);
  for (int64_t i = 0; i < 3; ++i) files.layer_scores[0](0, i) = static_cast<double>(10 - i);
  CHECK_THAT(test::score_row(*small.build(), "external,scores=F", "2", 0, files), near({10, 9, 8}));
}

}  // namespace
}  // namespace kvsim
