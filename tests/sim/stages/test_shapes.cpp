// Shapes that engines hold (policies.md 5.9 and 7), on paper.
#include <catch2/catch.hpp>

#include "sim/core/error.hpp"
#include "sim/policy/record.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

using Kept = std::vector<int>;

/// Two KV heads of one query head each, eight prompt entries; the last query gives them weights.
std::unique_ptr<test::RandomRun> eight_entries() {
  test::SmallRun run;
  run.prompt = 8;
  run.query_heads = run.kv_heads = 2;
  run.positions = {7, 8};
  const std::vector<double> first = {9, 1, 8, 1, 1, 2, 1, 1}, second = {1, 7, 1, 6, 2, 1, 1, 1};
  for (const std::vector<double>& own : {first, second}) {
    std::vector<double> later = own;
    later.push_back(1);
    run.weights.push_back({own, later});
  }
  return run.build();
}

const std::string kByLast = "tova,queries=last,last_queries=1,group=mean";

TEST_CASE("a union gives all heads of a layer one set", "[shapes][stages]") {
  const auto run = eight_entries();
  // Weights sum to 24 and 20. Each head's own three: 0, 2, 5 and 1, 3, 4.
  CHECK(test::kept_entries(*run, kByLast, "3", 0) == Kept{0, 2, 5});
  CHECK(test::kept_entries(*run, kByLast, "3", 1) == Kept{1, 3, 4});
  for (const int64_t owner : {0, 1}) {
    // Shares of attention, the two heads': 0: 9/24 and 1/20, 1: 1/24 and 7/20, 2: 8/24 and 1/20,
    // 3: 1/24 and 6/20. Their sums: 0.425, 0.392, 0.383, 0.342.
    CHECK(test::kept_entries(*run, kByLast + ",union=mean", "3", owner) == Kept{0, 1, 2});
    CHECK(test::kept_entries(*run, kByLast + ",union=max", "2", owner) == Kept{0, 1});
    CHECK(test::kept_entries(*run, kByLast + ",union=root-mean-square", "3", owner) ==
          Kept{0, 1, 2});
    // The best of either head, the more recent first, then the second best.
    CHECK(test::kept_entries(*run, kByLast + ",union=best-rank", "2", owner) == Kept{0, 1});
    CHECK(test::kept_entries(*run, kByLast + ",union=best-rank", "3", owner) == Kept{0, 1, 3});
  }
}

TEST_CASE("a union over layers gives all heads of all layers one set", "[shapes][stages]") {
  const auto run = test::random_run({.prompt = 23}, {0, 1, 3}, 4);
  for (const char* kind : {"mean", "max", "root-mean-square", "best-rank"}) {
    const std::string of_layers = std::string("snapkv,window=4,union=") + kind;
    const auto apart = test::kept_of(*run, {of_layers}, {"9"});
    CHECK(apart[0][0][0]->owners != apart[1][0][0]->owners);
    const auto united = test::kept_of(*run, {of_layers + ",union_layers=yes"}, {"9"});
    for (const LayerKept& layer : united)
      for (const auto& owner : layer[0][0]->owners) CHECK(owner == united[0][0][0]->owners[0]);
  }
}

TEST_CASE("blocks are kept as a whole, by the scores of their entries", "[shapes][stages]") {
  const auto run = eight_entries();
  // Head 0, blocks of two: means 5, 4.5, 1.5, 1 of 24; head 1: 4, 3.5, 1.5, 1 of 20.
  CHECK(test::kept_entries(*run, kByLast + ",block=2", "4", 0) == Kept{0, 1, 2, 3});
  CHECK(test::kept_entries(*run, kByLast + ",block=2", "5", 0) == Kept{0, 1, 2, 3});
  CHECK(test::kept_entries(*run, kByLast + ",block=2", "1", 0).empty());
  // Blocks of three: 0-2, 3-5 and 6-7. Head 1: means 3, 3 and 1, at equal score the more recent;
  // the largest are 7, 6 and 1.
  CHECK(test::kept_entries(*run, kByLast + ",block=3", "3", 1) == Kept{3, 4, 5});
  CHECK(test::kept_entries(*run, kByLast + ",block=3,block_score=max", "3", 1) == Kept{0, 1, 2});
  // The last block has two entries, but does not overtake a larger one that no longer fits.
  CHECK(test::kept_entries(*run, kByLast + ",block=3", "5", 1) == Kept{3, 4, 5});
}

TEST_CASE("a protected entry keeps its block", "[shapes][stages]") {
  const auto run = eight_entries();
  CHECK(test::kept_entries(*run, kByLast + ",block=2,recent=1", "4", 0) == Kept{0, 1, 6, 7});
  CHECK(test::kept_entries(*run, kByLast + ",block=4,recent=1", "7", 0) == Kept{4, 5, 6, 7});
}

TEST_CASE("a threshold keeps what exceeds it, at every budget", "[shapes][stages]") {
  const auto run = eight_entries();
  for (const char* budget : {"1", "0.5"}) {
    const std::string by = kByLast + ",allocate=threshold,threshold=";
    CHECK(test::kept_entries(*run, by + "0.2", budget, 0) == Kept{0, 2});      // 9 and 8 of 24
    CHECK(test::kept_entries(*run, by + "0.08", budget, 0) == Kept{0, 2, 5});  // 2/24 = 0.083
    CHECK(test::kept_entries(*run, by + "0.9,threshold_of=max", budget, 1) == Kept{1});
    CHECK(test::kept_entries(*run, by + "0.8,threshold_of=max", budget, 1) == Kept{1, 3});
    // The mean of eight shares is 1/8: 0.125 and twice that.
    CHECK(test::kept_entries(*run, by + "2,threshold_of=mean", budget, 1) == Kept{1, 3});
    CHECK(test::kept_entries(*run, by + "0.9,threshold_of=max,sinks=1,recent=1", budget, 1) ==
          Kept{0, 1, 7});
  }
}

TEST_CASE("composites of the first layer are lifted or worth their own", "[shapes][stages]") {
  // Two equal layers of one head, and scores of deeper layers count half.
  test::SmallRun run;
  run.prompt = 4;
  run.positions = {3, 4};
  run.weights = {{{8, 4, 2, 1}, {8, 4, 2, 1, 1}}};
  run.layers = {0, 1};
  const auto built = run.build();
  const std::string by = kByLast + ",allocate=composite,composite_first=own";
  CHECK(test::kept_entries(*built, by, "2", 0, 0) == Kept{0, 1});
  CHECK(test::kept_entries(*built, by, "2", 0, 1) == Kept{0, 1});
  // exp(-4/2) = 0.135: 8, 4, 2, 1 against 1.08, 0.54, ...; three and one.
  CHECK(test::kept_entries(*built, by + ",joint_depth=4", "2", 0, 0) == Kept{0, 1, 2});
  CHECK(test::kept_entries(*built, by + ",joint_depth=4", "2", 0, 1) == Kept{0});
}

TEST_CASE("shapes see no budget, and are refused where they mean nothing", "[shapes][stages]") {
  const auto nest = [](const char* text) { return budgets_nest(Record::parse(text).settings); };
  CHECK(nest("snapkv,union=best-rank,block=16,block_score=max"));
  CHECK(nest("snapkv,allocate=threshold"));
  CHECK_FALSE(spends_budget(Record::parse("snapkv,block=16").settings));
  for (const char* text :
       {"snapkv,block_score=max", "knorm,schedule=decode,merge=convex,block=16",
        "h2o,allocate=ada,schedule=decode,union=mean", "snapkv,constrain=fair,block=2",
        "keepkv,merge_order=merge-first,block=2", "kvmerger,block=2"})
    CHECK_THROWS_AS(Record::parse(text), Error);
}

}  // namespace
}  // namespace kvsim
