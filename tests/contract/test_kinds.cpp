// A kind is a whole plug-in: what it declares is all that tests and rules know of it. The examples
// of CONTRIBUTING.md stand for a kind that somebody adds.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "sim/policy/record.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/stages.hpp"
#include "tests/reference/kinds.hpp"
#include "tests/support/random_records.hpp"

namespace kvsim {
namespace {

bool nest(const std::string& text) { return budgets_nest(Record::parse(text).settings); }

bool holds(const std::string& record, const KindInfo& kind) {
  return (record + ",").find("," + kind.stage + "=" + kind.name + ",") != std::string::npos;
}

TEST_CASE("every kind of a stage that the reference knows has one, or says why not", "[kinds]") {
  for (const KindInfo* kind : all_kinds()) {
    if (!reference::references().contains(kind->stage)) continue;
    CAPTURE(kind->stage, kind->name);
    CHECK(test::has_reference(*kind) == kind->no_reference.empty());
  }
  for (const auto& [stage, names] : reference::references())
    for (const std::string& name : names) CHECK(find_kind(stage, name).info().name == name);
}

TEST_CASE("parameters of scoring and selection declare values to test with", "[kinds]") {
  std::set<std::string> wanted;
  for (const KindInfo* kind : all_kinds())
    if (test::has_reference(*kind)) wanted.insert(kind->keys.begin(), kind->keys.end());
  for (const Parameter* p : parameters()) {
    CAPTURE(p->key);
    for (const std::string& value : p->test_values) CHECK(canonical_value(*p, value) == value);
    const bool all_are_tested = p->type == ValueType::word || p->type == ValueType::flag;
    if ((wanted.contains(p->key) || p->always) && !all_are_tested && !p->is_file)
      CHECK_FALSE(p->test_values.empty());
  }
}

TEST_CASE("a kind more changes no random record but those that hold it", "[kinds]") {
  const std::vector<std::string> with = test::random_records(20, 5);
  size_t others = 0;
  for (const KindInfo* kind : all_kinds()) {
    if (!test::has_reference(*kind)) continue;
    CAPTURE(kind->stage, kind->name);
    const std::vector<std::string> without = test::random_records(
        20, 5, [&](const KindInfo& one) { return &one != kind && test::has_reference(one); });
    for (size_t at = 0; at < with.size(); ++at)
      if (!holds(with[at], *kind)) {
        CHECK(with[at] == without[at]);
        ++others;
      }
  }
  CHECK(others > 1000);
}

TEST_CASE("every kind that may be typed is drawn, with every parameter that it names", "[kinds]") {
  for (const KindInfo* kind : all_kinds()) {
    if (!test::has_reference(*kind) || find_kind(kind->stage, kind->name).looks_ahead()) continue;
    CAPTURE(kind->stage, kind->name);
    const std::vector<std::string> records = test::random_records_with(*kind, 20, 1);
    CHECK(records.size() > 10);
    for (const std::string& record : records) CHECK(holds(record, *kind));
    for (const std::string& key : kind->keys) {
      CAPTURE(key);
      size_t seen = 0;
      for (const std::string& record : records)
        seen += record.find("," + key + "=") < record.size();
      CHECK(seen > 0);
    }
  }
}

TEST_CASE("what the kinds and the values of keys say decides whether budgets nest", "[kinds]") {
  CHECK(nest("snapkv"));
  CHECK(nest("snapkv,window=16,recent=2,sinks=4"));
  for (const char* change :
       {"window=0.25", "recent=0.3", "first_layer_recent=0.6", "std_keep=0.1", "allocate=pyramid",
        "stage1=ratio", "constrain=fair", "smooth=aws", "queries=all,merge=kvmerger",
        "group=layer-mean,nested=yes", "merge=keepkv,merge_order=merge-first"}) {
    CAPTURE(change);
    CHECK_FALSE(nest(std::string("snapkv,") + change));
  }
}

/// Protects a quarter of the budget, and says nothing of nesting.
class Silent : public Queries {
 public:
  Silent() : Queries({"example-silent", "a test", "", "", "", "it scores as the window does"}) {}
  bool has_window() const override { return true; }
  int64_t window(const Settings&, int64_t budget, int64_t) const override {
    return std::max<int64_t>(1, budget / 4);
  }
  void observe(const Settings&, int64_t window, const TraceInfo&, Segment& segment) const override {
    segment.window = std::min(window, segment.range.size());
    segment.candidates = {segment.range.begin, segment.range.end - segment.window};
    for (int64_t j = segment.candidates.end; j < segment.range.end; ++j)
      segment.positions.push_back(j);
  }
};
const Register<Queries, Silent> silent;

TEST_CASE("a kind that sees the budget and says nothing does not let budgets nest", "[kinds]") {
  CHECK_FALSE(nest("snapkv,queries=example-silent"));
  CHECK(nest("snapkv,aggregate=example-power-mean,example_power=3"));
}

TEST_CASE("a key is declared once, with values that can be read", "[kinds]") {
  const size_t before = parameters().size();
  CHECK_THROWS_WITH(Declare("power", "count >= 1", "1", "a test"),
                    Catch::Contains("declared twice: power"));
  CHECK_THROWS_WITH(Declare("example_second", "counts >= 1", "1", "a test"),
                    Catch::Contains("example_second: not a type of values: counts"));
  CHECK_THROWS_WITH(Declare("example_second", "count", "1", "a test"),
                    Catch::Contains("example_second: no range: count"));
  CHECK(parameters().size() == before);
  CHECK_FALSE(find_parameter("example_second"));
}

TEST_CASE("keys stand in the order of stages, a stage before what its kinds read", "[kinds]") {
  std::vector<std::string> keys;
  for (const Parameter* p : parameters()) keys.push_back(p->key);
  const auto at = [&](const char* key) { return std::ranges::find(keys, key) - keys.begin(); };
  for (const auto& [first, then] : std::vector<std::pair<const char*, const char*>>{
           {"granularity", "tie"},
           {"tie", "queries"},
           {"queries", "last_queries"},
           {"last_queries", "window"},
           {"window", "indicator"},
           {"aggregate", "ema_alpha"},
           {"ema_alpha", "order"},
           {"order", "smooth"},
           {"sinks", "allocate"},
           {"schedule", "buffer"},
           {"period", "example_newest"}}) {  // of the tests' own folder
    CAPTURE(first, then);
    CHECK(at(first) < at(then));
    CHECK(at(then) < std::ssize(keys));
  }
}

TEST_CASE("a declaration says type, range, unit and whether a key may be unset", "[kinds]") {
  const Parameter& rate = *find_parameter("estimate_decay");
  CHECK(rate.type == ValueType::real);
  CHECK(rate.range() == "a number in [0, 1)");
  CHECK(find_parameter("aws_min")->range() == "an odd integer >= 1");
  CHECK(find_parameter("aws_min")->unit == "entries");
  CHECK(find_parameter("evict_batch")->low_open);
  CHECK(find_parameter("scores")->is_file);
  CHECK(find_parameter("scores")->unit == "path");
  CHECK(find_parameter("class_recovery")->range() == "a number in [0, 1], or none");
  CHECK(find_parameter("ada_total")->words == std::vector<std::string>{"per-head", "product"});
}

}  // namespace
}  // namespace kvsim
