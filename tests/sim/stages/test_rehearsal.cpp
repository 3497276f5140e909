// Queries of the prompt that rehearse what follows it (policies.md 5.1, 5.2), on paper.
#include <catch2/catch.hpp>
#include <cmath>

#include "sim/core/error.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/stages.hpp"
#include "tests/support/near.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

using test::near;

std::vector<double> scores(const test::RandomRun& run, const std::string& changes) {
  return test::score_row(run, "h2o,aggregate=sum,indicator=rehearsal," + changes, "1");
}

TEST_CASE("the piece of a rehearsed query stands beside the prompt", "[stages]") {
  // Without rotation the query at 3 gives 1, 2, 4, 8 to the prompt; pieces of 2 add 4 + 8 of
  // entries 2 and 3 to the denominator, pieces of 1 the 8 of entry 3, one of 9 all 15.
  test::SmallRun small;
  small.weights = {{{1, 2, 4, 8}}};
  const auto run = small.build();
  run->info.rope.inv_freq = {0, 0};
  const std::string last = "queries=last,last_queries=1,rehearsal_steps=";
  CHECK_THAT(scores(*run, last + "2"), near({1.0 / 27, 2.0 / 27, 4.0 / 27, 8.0 / 27}));
  CHECK_THAT(scores(*run, last + "1"), near({1.0 / 23, 2.0 / 23, 4.0 / 23, 8.0 / 23}));
  CHECK_THAT(scores(*run, last + "9"), near({1.0 / 30, 2.0 / 30, 4.0 / 30, 8.0 / 30}));
}

TEST_CASE("an early query sees the entries after it", "[stages]") {
  // The query at 0 gives 6 and 3 to entries 0 and 1, of which it saw the first alone; its piece
  // is itself: 6 + 3 + 6.
  test::SmallRun small;
  small.prompt = 2;
  small.positions = {0, 1, 2};
  small.weights = {{{6, 3}, {0, 0}}};
  const auto run = small.build();
  run->info.rope.inv_freq = {0};
  const std::string both = "queries=spread,spread_queries=2,aggregate=power-mean,power=1,";
  const std::vector<double> mean = scores(*run, both + "rehearsal_steps=1");
  CHECK(2 * mean[0] == Approx(6.0 / 15 + 1.0 / 3));
  CHECK(2 * mean[1] == Approx(3.0 / 15 + 1.0 / 3));
}

TEST_CASE("a rehearsed query is turned by as many positions as it moves", "[stages]") {
  // A quarter turn a position: the query (ln 3, 0) at 1 moves to 2 and is (0, ln 3) there. Keys
  // (1, 0) and (0, 1) get 1 and 3, and its piece, which moves along, e^0.
  test::SmallRun small;
  small.prompt = 2;
  small.keys = {{{1, 0}, {0, 1}}};
  const auto run = small.build();
  run->info.rope.inv_freq = {std::acos(0.0)};
  test::set_element(run->layers[0].q, 0, 0, 0, std::log(3.0f));
  CHECK_THAT(scores(*run, "queries=last,last_queries=1,rehearsal_steps=1"),
             near({1.0 / 5, 3.0 / 5}));
  run->info.rope.interleaved = true;  // the same of two numbers
  CHECK_THAT(scores(*run, "queries=last,last_queries=1,rehearsal_steps=1"),
             near({1.0 / 5, 3.0 / 5}));
}

TEST_CASE("spread queries are evenly spaced and end with the newest", "[stages]") {
  TraceInfo info;
  info.prompt_len = 10;
  Segment segment;
  segment.range = {0, 10};
  const auto& spread = Kinds<Queries>::find("spread");
  spread.observe(test::settings_with("spread_queries=3"), 0, info, segment);
  CHECK(segment.positions == std::vector<int64_t>{2, 5, 9});
  CHECK(segment.candidates == Range{0, 10});
  spread.observe(test::settings_with("spread_queries=99"), 0, info, segment);
  CHECK(segment.positions.size() == 10);
  segment.range = {3, 9};  // sees its own; the others count as rows of nothing
  spread.observe(test::settings_with("spread_queries=3"), 0, info, segment);
  CHECK(segment.positions == std::vector<int64_t>{5});
  CHECK(segment.rows_before == 1);
  CHECK(segment.rows() == 3);
}

TEST_CASE("rehearsal takes the prompt's queries only", "[stages]") {
  CHECK_THROWS_AS(Record::parse("oracle-mean,indicator=rehearsal"), Error);
  CHECK_NOTHROW(Record::parse("snapkv,indicator=rehearsal"));
}

}  // namespace
}  // namespace kvsim
