#include <algorithm>
#include <catch2/catch.hpp>

#include "io/side_files.hpp"
#include "run/explain/explain.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

TEST_CASE("a record with a window is taken apart into its rows and the defensive step",
          "[run][fragility]") {
  const FragilityGroup group = fragility_group(Record::parse("importance,window=4"));
  CHECK(group.base == "importance,window=4");
  REQUIRE(group.singles.size() == 4);
  const Record third = Record::parse(group.singles[2]);
  CHECK(third.settings.is("aggregate", "single"));
  CHECK(third.settings.count("single_row") == 2);
  CHECK(third.settings.count("window") == 4);
  const Record max = Record::parse(group.max);
  CHECK((max.settings.is("aggregate", "max") && max.settings.is("group", "max")));
  CHECK((max.settings.is("prior", "none") && max.settings.is("indicator", "importance")));
  const Record defensive = Record::parse(group.defensive);  // Algorithm 1: the norm comes last
  CHECK(defensive.settings.is("indicator", "attention"));
  CHECK(defensive.settings.is("aggregate", "max"));
  CHECK(defensive.settings.is("group", "max"));
  CHECK(defensive.settings.is("prior", "head-mean"));
  CHECK(defensive.settings.is("weight", "projected-l1"));
  CHECK(defensive.settings.is("allocate", "uniform"));
  CHECK(group.published == "defensivekv:code,window=4");
}

TEST_CASE("keys that are replaced do not stay beside their replacement", "[run][fragility]") {
  const FragilityGroup group = fragility_group(
      Record::parse("importance,window=4,aggregate=single,single_row=3"));
  CHECK(Record::parse(group.singles[0]).settings.count("single_row") == 0);
  CHECK(group.defensive == fragility_group(Record::parse("importance,window=4")).defensive);
}

TEST_CASE("records without a window of queries are left as they are", "[run][fragility]") {
  CHECK(fragility_group(Record::parse("streaming")).singles.empty());
  CHECK(fragility_group(Record::parse("h2o")).singles.empty());
  CHECK(fragility_groups({Record::parse("knorm"), Record::parse("snapkv")}).size() == 1);
}

TEST_CASE("replay --fragility measures every row, and its band is that of those records",
          "[cli][fragility]") {
  const Synthesized made;
  const Outcome outcome = made.replay("--fragility --policy importance,window=4");
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  CHECK_THAT(outcome.out, Catch::Contains("importance,window=4 at budget 0.5"));
  const Dataset results = read_results(made.results);
  CHECK(results.size("policy") == 8);  // the record, its 4 rows, and three others
  const auto rows = fragility_rows(results,
                                   fragility_groups({Record::parse("importance,window=4")}));
  REQUIRE(rows.size() == 1);
  double least = 1;
  double most = 0;
  for (int64_t p = 1; p <= 4; ++p) {  // mean over the two layers of the mean over steps
    const auto mean = results.row("retained_importance_mean", {p, 0});
    least = std::min(least, (mean[0] + mean[1]) / 2);
    most = std::max(most, (mean[0] + mean[1]) / 2);
  }
  CHECK(rows[0].single.mean.low == Approx(least));
  CHECK(rows[0].single.mean.high == Approx(most));
  CHECK(rows[0].single.mean.middle >= least);
  CHECK(rows[0].single.mean.middle <= most);
  // A prior before the norm ties what it lifts, and ties go to the score itself: only the order of
  // Algorithm 1 keeps other entries than the maximum.
  const auto kept = [&](int64_t policy) {
    const auto shares = results.row("retained_importance_mean", {policy, 0});
    return std::vector<double>(shares.begin(), shares.end());
  };
  REQUIRE(rows[0].others.size() == 4);
  CHECK(rows[0].others[2].first == "defensive step");
  CHECK(kept(5) != kept(6));
  CHECK(kept(6) != kept(7));
  const Outcome refused = made.replay("--fragility --policy streaming");
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, Catch::Contains("no policy aggregates over a window"));
}
