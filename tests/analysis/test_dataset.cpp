#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/paths.hpp"

using namespace kvsim;

namespace {

/// The tests also hold the measure of CONTRIBUTING.md, which the program does not have.
std::string without_example(const std::string& markdown) {
  std::istringstream in(markdown);
  std::string kept;
  for (std::string line; std::getline(in, line);)
    if (!line.starts_with("| `example_")) kept += line + "\n";
  return kept;
}

}  // namespace

TEST_CASE("docs/results.md says what the declarations say", "[analysis][docs]") {
  const std::string path = std::string(kSourceDir) + "/docs/results.md";
  const std::string declared_text = without_example(variables_markdown());
  const std::string begin = "<!-- variables:begin -->\n";
  std::string page = test::read_bytes(path);
  const size_t from = page.find(begin) + begin.size(), to = page.find("<!-- variables:end -->");
  REQUIRE(to != std::string::npos);
  if (std::getenv("KVSIM_UPDATE_DOCS") != nullptr) {
    page.replace(from, to - from, declared_text);
    std::ofstream(path) << page;
    return;
  }
  INFO("KVSIM_UPDATE_DOCS=1 kvsim_tests \"[docs]\" writes it anew");
  CHECK((page.substr(from, to - from) == declared_text));  // without printing two pages
}

TEST_CASE("kvsim variables --json says what the declarations say", "[analysis][cli]") {
  const test::Outcome told = test::run_kvsim("variables --json");
  REQUIRE(told.status == 0);
  const auto all = nlohmann::json::parse(told.out);
  size_t at = 0;
  for (const VariableDeclaration& variable : declared_variables()) {
    if (std::string(variable.name).starts_with("example_")) continue;  // of the tests alone
    const auto& one = all.at(at++);
    CHECK(one.at("name") == variable.name);
    CHECK(one.at("dimensions") == variable.dim_names());
    CHECK(one.at("units") == variable.units);
    CHECK(one.at("definition") == variable.definition);
    CHECK(one.at("type") != "");
    CHECK(one.at("written_when") != "");
    CHECK(one.contains("flags") == !variable.flags.empty());
  }
  const auto of_results = std::ranges::count_if(
      all, [](const auto& one) { return one.value("file", "") == "results"; });
  CHECK(static_cast<int64_t>(at) == of_results);  // behind them those of files of losses
  CHECK_THAT(test::run_kvsim("variables stream_error").out, Catch::Contains("residual stream"));
  CHECK_THAT(test::run_kvsim("variables stream_eror").err, Catch::Contains("stream_error"));
}

TEST_CASE("every declared variable stands over dimensions that have a coordinate", "[analysis]") {
  std::set<std::string> coordinates;
  std::set<std::string> names;
  for (const VariableDeclaration& variable : declared_variables()) {
    CHECK(names.insert(variable.name).second);
    for (const std::string& dim : variable.dim_names()) {
      if (dim == variable.name) coordinates.insert(dim);
      CHECK(coordinates.contains(dim));
    }
    CHECK(std::string(variable.units) != "");
    CHECK(std::string(variable.long_name) != "");
  }
}

TEST_CASE("rows of a dataset are found by their leading indices", "[analysis]") {
  Dataset dataset;
  dataset.add_dimension("a", 2);
  dataset.add_dimension("b", 3);
  Variable variable{"v", {"a", "b"}, "1", "v", {}, std::vector<double>{0, 1, 2, 3, 4, 5}};
  dataset.add(variable);
  CHECK(dataset.row("v", {1})[2] == 5);
  CHECK(dataset.row("v", {1, 1}).size() == 1);
  CHECK(dataset.row("v", {0, 1})[0] == 1);
  CHECK(dataset.row("v", {}).size() == 6);
  CHECK_THROWS(dataset.add(variable));                                            // twice
  CHECK_THROWS(dataset.add({"w", {"a"}, "1", "w", {}, std::vector<double>{1}}));  // does not fill
}

TEST_CASE("a fresh variable is undefined everywhere", "[analysis]") {
  Dataset dataset;
  for (const char* dim : {"policy", "budget", "layer", "kv_head", "position"}) {
    dataset.add_dimension(dim, 2);
  }
  const Variable kept = make_variable(declared("kept"), dataset);
  for (const double value : std::get<std::vector<double>>(kept.values)) CHECK(std::isnan(value));
  const Variable mask = make_variable(declared("kept_mask"), dataset);
  CHECK(std::get<std::vector<uint8_t>>(mask.values) == std::vector<uint8_t>(32, 255));
  CHECK(mask.flags.size() == 3);
}
