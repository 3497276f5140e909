#include "analysis/variables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/shipped.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli::variables_command {
namespace {

void print_one(const VariableDeclaration& one) {
  fmt::print("{} [{}], {}\n  {}: {}\n", one.name, fmt::join(one.dim_names(), ", "), one.units,
             one.long_name, one.definition);
}

/// Variables of files of losses, which the package writes; none without it.
nlohmann::ordered_json loss_variables() {
  std::ifstream file(shipped_file("python/kvsim/losses.json"));
  auto found = nlohmann::ordered_json::parse(file, nullptr, false);
  return found.is_array() ? found : nlohmann::ordered_json::array();
}

int run(const Values& values) {
  const std::string name = text(values, "name");
  const nlohmann::ordered_json losses = loss_variables();
  if (has(values, "json")) {
    if (!name.empty())
      usage_error({.what = "--json prints all variables", .where = "variables", .found = name});
    auto all = nlohmann::ordered_json::parse(variables_json());
    all.insert(all.end(), losses.begin(), losses.end());
    fmt::print("{}\n", all.dump(2));
    return kDone;
  }
  std::vector<std::string> names;
  bool found = false;
  for (const VariableDeclaration& one : declared_variables()) {
    names.emplace_back(one.name);
    if (name.empty() || name == one.name) {
      print_one(one);
      found = true;
    }
  }
  for (const auto& one : losses) {
    names.push_back(one.value("name", ""));
    if (!name.empty() && name != names.back()) continue;
    fmt::print("{} [{}], {}\n  {}: {}\n", names.back(),
               fmt::join(one.value("dimensions", std::vector<std::string>()), ", "),
               one.value("units", ""), one.value("long_name", ""), one.value("definition", ""));
    found = true;
  }
  if (!found)
    usage_error({.what = "unknown variable",
                 .where = "variables",
                 .found = name,
                 .hint = did_you_mean(name, names)});
  return kDone;
}

const bool registered = register_command(
    {.name = "variables",
     .summary = "what results files hold: dimensions, units and formulas",
     .arguments = {{.name = "name", .meaning = "one of them", .required = false}},
     .describe = add_json_option,
     .examples = {"kvsim variables stream_error", "kvsim variables --json"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::variables_command
