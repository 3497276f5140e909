#include "analysis/variables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/command.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli::variables_command {
namespace {

void print_one(const VariableDeclaration& one) {
  fmt::print("{} [{}], {}\n  {}: {}\n", one.name, fmt::join(one.dim_names(), ", "), one.units,
             one.long_name, one.definition);
}

int run(const Values& values) {
  const std::string name = text(values, "name");
  if (has(values, "json")) {
    if (!name.empty())
      usage_error({.what = "--json prints all variables", .where = "variables", .found = name});
    fmt::print("{}\n", variables_json());
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
