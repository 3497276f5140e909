// Parts of a sweep put together: the whole is what one run over all policies says.
#include <catch2/catch.hpp>
#include <cmath>

#include "run/sweep/sweep.hpp"
#include "tests/support/results.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

const std::vector<std::string> kRecords = {"snapkv,window=4", "streaming", "h2o"};

Dataset results_of(const std::vector<std::string>& records, const std::string& budget = "0.5",
                   uint64_t seed = 1) {
  RandomTraceShape shape;
  shape.seed = seed;
  return StudyCase(shape, {}, records,
                   [&](StudyOptions& o) { o.budgets = {Budget::parse(budget)}; })
      .results();
}

std::vector<std::string> policies_of(const Dataset& results) {
  return std::get<std::vector<std::string>>(results.at("policy").values);
}

Thrown refused(const Dataset& first, const Dataset& second) {
  ResultsJoin join(kRecords);
  join.add(first, "first.nc");
  return error_of([&] { join.add(second, "second.nc"); });
}

}  // namespace

TEST_CASE("parts of one policy each, in any order, make the whole again", "[sweep]") {
  const Dataset whole = results_of(kRecords);
  REQUIRE(policies_of(whole) == kRecords);
  ResultsJoin join(kRecords);
  for (const int64_t policy : {2, 0, 1}) {
    const std::vector<std::string> one = {kRecords[static_cast<size_t>(policy)]};
    ResultsJoin some(one);
    some.add(whole, "whole", true);
    const Dataset part = some.finish();
    CHECK(policies_of(part) == one);
    join.add(part, "part");
  }
  CHECK(join.missing().empty());
  const Dataset joined = join.finish();
  REQUIRE(joined.variables().size() == whole.variables().size());
  for (const Variable& variable : whole.variables()) check_same(variable, joined.at(variable.name));
  CHECK(*joined.attribute("config") == *whole.attribute("config"));
}

TEST_CASE("the policies that no part had are missing", "[sweep]") {
  ResultsJoin join(kRecords);
  join.add(results_of({"streaming"}), "one.nc");
  CHECK(join.missing() == std::vector<std::string>{"snapkv,window=4", "h2o"});
}

TEST_CASE("a variable that only some parts have is undefined in the rest", "[sweep]") {
  const std::string rounded = "snapkv,window=4,quantize=per-token";
  ResultsJoin join({"streaming", rounded});
  join.add(results_of({"streaming"}), "plain.nc");
  const Dataset part = results_of({rounded});
  REQUIRE(part.has("quantization_error"));
  join.add(part, "rounded.nc");
  const Dataset joined = join.finish();
  for (const double value : joined.row("quantization_error", {0})) CHECK(std::isnan(value));
  CHECK(same_numbers(joined.row("quantization_error", {1}), part.row("quantization_error", {0})));
}

TEST_CASE("parts that do not belong together are refused by name", "[sweep]") {
  const Dataset first = results_of({"streaming"});
  const auto says = [&](const Dataset& second, const std::string& what) {
    const Thrown thrown = refused(first, second);
    CHECK(thrown.fault == Fault::bad_data);
    CHECK_THAT(thrown.message, Catch::Contains("second.nc") && Catch::Contains(what));
  };
  says(first, "a policy twice");
  says(results_of({"tova"}), "a policy that is not in the sweep");
  says(results_of({"h2o"}, "0.25"), "other values of budget");
  RandomTraceShape longer;
  longer.later = 12;
  says(StudyCase(longer, {}, {"h2o"}).results(), "of another length");
  says(Dataset(), "no policies");
}
