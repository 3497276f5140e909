// Parts of a sweep put together: the whole is what one run over all policies says.
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/side_files.hpp"
#include "run/sweep/sweep.hpp"
#include "tests/io/trace_fixture.hpp"
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

/// One policy of several.
Dataset alone(const Dataset& whole, int64_t policy) {
  Dataset part;
  for (const Dimension& dimension : whole.dimensions())
    part.add_dimension(dimension.name, dimension.name == "policy" ? 1 : dimension.size);
  for (const Attribute& attribute : whole.attributes())
    part.set_attribute(attribute.name, attribute.value);
  auto config = nlohmann::ordered_json::parse(whole.text_attribute("config"));
  config["policies"] = {config["policies"].at(static_cast<size_t>(policy))};
  part.set_attribute("config", config.dump());
  for (Variable variable : whole.variables()) {
    const auto take = [&](auto& values) {
      const auto length = std::ssize(values) / whole.size("policy");
      const auto begin = values.begin() + policy * length;
      values = std::remove_cvref_t<decltype(values)>(begin, begin + length);
    };
    if (!variable.dims.empty() && variable.dims[0] == "policy") std::visit(take, variable.values);
    part.add(std::move(variable));
  }
  return part;
}

/// Parts as files.
class Parts {
 public:
  void add(const std::string& name, const Dataset& part) {
    paths_.push_back(folder_ / name);
    write_results(part, paths_.back());
  }
  Dataset join(const std::vector<std::string>& policies) const {
    return join_results(policies, paths_);
  }

 private:
  TemporaryFolder folder_;
  std::vector<std::string> paths_;
};

}  // namespace

TEST_CASE("parts of one policy each, in any order, make the whole again", "[sweep]") {
  const Dataset whole = results_of(kRecords);
  REQUIRE(policies_of(whole) == kRecords);
  Parts parts;
  for (const int64_t policy : {2, 0, 1})
    parts.add(std::to_string(policy) + ".nc", alone(whole, policy));
  const Dataset joined = parts.join(kRecords);
  CHECK(policies_of(joined) == kRecords);
  REQUIRE(joined.variables().size() == whole.variables().size());
  for (const Variable& variable : whole.variables()) check_same(variable, joined.at(variable.name));
  CHECK(*joined.attribute("config") == *whole.attribute("config"));
}

TEST_CASE("a variable that only some parts have is undefined in the rest", "[sweep]") {
  const std::string rounded = "snapkv,window=4,quantize=per-token";
  const Dataset part = results_of({rounded});
  REQUIRE(part.has("quantization_error"));
  Parts parts;
  parts.add("plain.nc", results_of({"streaming"}));
  parts.add("rounded.nc", part);
  const Dataset joined = parts.join({"streaming", rounded});
  for (const double value : joined.row("quantization_error", {0})) CHECK(std::isnan(value));
  CHECK(same_numbers(joined.row("quantization_error", {1}), part.row("quantization_error", {0})));
}

TEST_CASE("parts that do not belong together are refused by name", "[sweep]") {
  const Dataset first = results_of({"streaming"});
  const auto says =
      [&](const Dataset& second, const std::string& what, const std::string& where = "second.nc") {
    Parts parts;
    parts.add("first.nc", first);
    parts.add("second.nc", second);
    const Thrown thrown = error_of([&] { parts.join(kRecords); });
    CHECK(thrown.fault == Fault::bad_data);
    CHECK_THAT(thrown.message, Catch::Contains(where) && Catch::Contains(what));
  };
  says(first, "a policy twice");
  says(results_of({"tova"}), "a policy that is not in the sweep");
  says(results_of({"h2o"}, "0.25"), "other values of budget");
  says(results_of({"h2o"}), "1 of 3 policies are missing", "missing: snapkv,window=4");
  RandomTraceShape longer;
  longer.later = 12;
  says(StudyCase(longer, {}, {"h2o"}).results(), "of another length");
}
