// Which records share scores: those of equal settings in everything that scoring reads, where what
// it reads is what its kinds declare.
#include <algorithm>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "sim/policy/prepared_record.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/stages.hpp"
#include "tests/support/random_run.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

/// A parameter of scoring that stands outside the sections of scoring: what a newcomer may add.
const Declare example_newest("example_newest", "count >= 1", "1",
                             "how many of the newest rows count");

class NewestRows : public Aggregation {
 public:
  static inline int made = 0;
  NewestRows(int64_t first, int64_t columns)
      : first_(first), sums_(static_cast<size_t>(columns), 0.0) {
    ++made;
  }
  void add(int64_t j, int64_t first, std::span<const double> part) override {
    for (size_t c = 0; c < part.size() && j >= first_; ++c)
      sums_[static_cast<size_t>(first) + c] += part[c];
  }
  void finish(std::span<double> out) override { std::ranges::copy(sums_, out.begin()); }

 private:
  int64_t first_;
  std::vector<double> sums_;
};

class SumOfNewest : public Aggregate {
 public:
  SumOfNewest()
      : Aggregate({"example-newest", "sum of the newest rows", "", "example_newest", "",
                   "its score is checked here by hand"}) {}
  std::unique_ptr<Aggregation> start(const Settings& settings, int64_t rows,
                                     int64_t columns) const override {
    return std::make_unique<NewestRows>(rows - settings.count(example_newest), columns);
  }
};
const Register<Aggregate, SumOfNewest> registered;

std::unique_ptr<test::RandomRun> run_of_one_layer() {
  return test::random_run({.d = 8, .dv = 6, .hidden = 10, .prompt = 24, .later = 3}, {0}, 1);
}

struct Prepared {
  explicit Prepared(const std::vector<std::string>& texts) {
    for (const std::string& text : texts)
      records.push_back(preparation.prepare(Record::parse(text)));
  }
  size_t plan(size_t record, size_t budget = 0) const {
    return records[record].budgets[budget].plan;
  }
  const ScorePlan& scores(size_t record) const { return preparation.plans()[plan(record)]; }

  std::unique_ptr<test::RandomRun> run = run_of_one_layer();
  std::vector<Budget> budgets = {Budget::parse("9"), Budget::parse("12")};
  Preparation preparation{run->info, run->info.layers, budgets};
  std::vector<PreparedRecord> records;
};

TEST_CASE("a parameter that a scoring kind declares keeps its records' scores apart", "[policy]") {
  const std::string base = "snapkv,window=5,aggregate=example-newest";
  const Prepared prepared({base, base + ",example_newest=4", base + ",example_newest=4,sinks=2"});
  CHECK(prepared.plan(0) != prepared.plan(1));
  CHECK(prepared.plan(1) == prepared.plan(2));  // what only selection reads changes no score

  const std::vector<std::string> budget = {"9"};
  const auto kept = test::kept_of(*prepared.run, {base, base + ",example_newest=4"}, budget, 0);
  for (size_t record = 0; record < 2; ++record) {
    const std::string text = record == 0 ? base : base + ",example_newest=4";
    const auto alone = test::kept_of(*prepared.run, {text}, budget, 0);
    CHECK(kept[0][record][0]->owners == alone[0][0][0]->owners);
  }
  CHECK(kept[0][0][0]->owners != kept[0][1][0]->owners);
}

TEST_CASE("what is aggregated is made once for records that differ in later stages", "[policy]") {
  const auto run = run_of_one_layer();
  const std::string base = "snapkv,window=5,aggregate=example-newest,example_newest=3,smooth=none";
  const std::vector<std::string> records = {
      base, base + ",prior=head-mean", base + ",weight=projected-l1,prior=head-mean",
      base + ",weight=value-l2,normalize=layer-sum,allocate=ada"};
  const std::vector<std::string> budget = {"9"};
  std::vector<KeptSets> alone;
  int made = 0;
  for (const std::string& record : records) {
    NewestRows::made = 0;
    alone.push_back(*test::kept_of(*run, {record}, budget, 0)[0][0][0]);
    made = std::max(made, NewestRows::made);
  }
  NewestRows::made = 0;
  const auto together = test::kept_of(*run, records, budget, 0);
  CHECK(NewestRows::made == made);
  for (size_t r = 0; r < records.size(); ++r) CHECK(together[0][r][0]->owners == alone[r].owners);
  CHECK(alone[0].owners != alone[2].owners);
}

TEST_CASE("rows of an indicator are the same for records of any grouping", "[policy]") {
  const auto run = run_of_one_layer();
  const std::string base = "snapkv,window=5,smooth=none,indicator=output-change";
  const std::vector<std::string> records = {base, base + ",group=max", base + ",group=layer-mean",
                                            base + ",group=none,granularity=query",
                                            base + ",order=gas"};
  const std::vector<std::string> budget = {"9"};
  const auto together = test::kept_of(*run, records, budget, 0);
  for (size_t r = 0; r < records.size(); ++r)
    CHECK(together[0][r][0]->owners ==
          test::kept_of(*run, {records[r]}, budget, 0)[0][0][0]->owners);
}

TEST_CASE("records share scores where only later stages differ", "[policy]") {
  const Prepared prepared({"snapkv,window=5", "snapkv,window=5,sinks=3,allocate=ada",
                           "snapkv,window=5,recent=7,whitelist=1-3", "snapkv,window=6",
                           "snapkv,window=5,kernel=7", "snapkv,window=5,order=sag"});
  CHECK(prepared.plan(0) == prepared.plan(1));
  CHECK(prepared.plan(0) == prepared.plan(2));
  CHECK(prepared.plan(0, 0) == prepared.plan(0, 1));  // at every budget
  for (const size_t other : {3, 4, 5}) CHECK(prepared.plan(0) != prepared.plan(other));
}

TEST_CASE("scoring can read nothing but what names its scores", "[policy]") {
  const Prepared prepared({"snapkv,window=5"});
  const Settings& settings = prepared.scores(0).settings;
  CHECK(settings.count("kernel") == 5);
  for (const char* key : {"sinks", "window", "allocate", "ema_alpha", "example_newest"})
    CHECK_THROWS_AS(settings.text(key), std::logic_error);
}

TEST_CASE("the order of scoring is a list of steps", "[policy]") {
  const ScoringSteps steps(test::settings_with("order=sag"));
  CHECK(steps == "sag");
  CHECK(
      (steps.before_aggregate(ScoringStep::smooth) && !steps.before_aggregate(ScoringStep::group)));
  CHECK(steps.after_aggregate() == "g");
  CHECK(ScoringSteps(test::settings_with("order=gsa")).after_aggregate().empty());
}

}  // namespace
}  // namespace kvsim
