#include "analysis/variables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "analysis/measure.hpp"

namespace kvsim {
namespace {

bool stands_over(const VariableDeclaration& variable, std::string_view axis) {
  if (variable.is_coordinate()) return false;
  for (std::string_view dims = variable.dims; !dims.empty();) {
    const std::string_view name = dims.substr(0, dims.find(' '));
    if (name == axis) return true;
    dims.remove_prefix(std::min(name.size() + 1, dims.size()));
  }
  return false;
}

/// A coordinate that is not of every run belongs to each measure that has a variable over it.
std::vector<std::string> measures_over(const VariableDeclaration& axis) {
  std::vector<std::string> names;
  for (const DeclareMeasure* measure : declared_measures())
    for (const VariableDeclaration& variable : measure->variables()) {
      if (!stands_over(variable, axis.name)) continue;
      for (const std::string& name : variable.measures)
        if (!std::ranges::count(names, name)) names.push_back(name);
    }
  return names;
}

std::vector<VariableDeclaration> all_variables() {
  std::vector<VariableDeclaration> all;
  for (const bool known : {true, false})
    for (const DeclareMeasure* measure : declared_measures())
      for (const VariableDeclaration& declaration : measure->variables()) {
        if ((declaration.known != nullptr) != known) continue;
        all.push_back(declaration);
        if (known && declaration.when == nullptr) all.back().measures = measures_over(declaration);
      }
  return all;
}

std::string occasion_text(const VariableDeclaration& variable) {
  std::vector<std::string> parts;
  for (const Condition* need : variable.needs) parts.emplace_back(need->text);
  if (variable.when == &kAlways && !parts.empty()) return fmt::format("{}", fmt::join(parts, "; "));
  if (variable.when != nullptr) parts.emplace_back(variable.when->text);
  if (variable.when == &kAlways) return parts.back();
  std::vector<std::string> names = variable.measures;
  if (names.empty()) names = {variable.name};
  parts.push_back(fmt::format("{}`--metric {}`", variable.when != nullptr ? "or " : "",
                              fmt::join(names, "` or `")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

const char* type_text(VariableType type) {
  static constexpr const char* kNames[] = {"float64", "int32", "int64", "uint8", "string"};
  return kNames[static_cast<size_t>(type)];
}

VariableValues undefined_values(VariableType type, size_t count) {
  switch (type) {
    case VariableType::float64:
      return std::vector<double>(count, std::numeric_limits<double>::quiet_NaN());
    case VariableType::int32: return std::vector<int32_t>(count, 0);
    case VariableType::int64: return std::vector<int64_t>(count, 0);
    case VariableType::uint8: return std::vector<uint8_t>(count, 255);
    case VariableType::text: return std::vector<std::string>(count);
  }
  throw std::logic_error("unknown type of a variable");
}

}  // namespace

const std::vector<VariableDeclaration>& declared_variables() {
  static const std::vector<VariableDeclaration> all = all_variables();
  return all;
}

const VariableDeclaration& declared(std::string_view name) {
  for (const VariableDeclaration& declaration : declared_variables()) {
    if (name == declaration.name) return declaration;
  }
  throw std::logic_error("no variable is declared as " + std::string(name));
}

std::vector<std::string> metrics_on_request() {
  std::vector<std::string> names;
  for (const VariableDeclaration& declaration : declared_variables()) {
    if (declaration.when == &kAlways || declaration.is_coordinate()) continue;
    std::vector<std::string> own = declaration.measures;
    if (own.empty()) own = {declaration.name};
    for (std::string& name : own)
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> known_metrics() {
  std::vector<std::string> names = metrics_on_request();
  for (const VariableDeclaration& declaration : declared_variables())
    if (!std::ranges::count(names, declaration.name)) names.push_back(declaration.name);
  return names;
}

std::set<std::string> variables_of(const std::set<std::string>& metrics) {
  std::set<std::string> measures = metrics;
  for (const VariableDeclaration& declaration : declared_variables())
    if (metrics.contains(declaration.name))
      for (const std::string& measure : declaration.measures) measures.insert(measure);
  std::set<std::string> names;
  for (const VariableDeclaration& declaration : declared_variables()) {
    const auto wanted = [&](const std::string& measure) { return measures.contains(measure); };
    if (metrics.contains(declaration.name) || std::ranges::any_of(declaration.measures, wanted))
      names.insert(declaration.name);
  }
  return names;
}

bool is_written(const VariableDeclaration& variable, const RunShape& run) {
  const auto holds = [&](const Condition* condition) { return condition->holds(run); };
  if (!std::ranges::all_of(variable.needs, holds)) return false;
  if (variable.when != nullptr && holds(variable.when)) return true;
  if (!variable.is_coordinate()) return run.options.metrics.contains(variable.name);
  return std::ranges::any_of(declared_variables(), [&](const VariableDeclaration& other) {
    return stands_over(other, variable.name) && is_written(other, run);
  });
}

std::set<std::string> variables_brought(const RunShape& run) {
  std::set<std::string> names;
  for (const VariableDeclaration& variable : declared_variables())
    if (variable.when != nullptr && variable.when != &kAlways && variable.when->holds(run))
      names.insert(variable.name);
  return names;
}

Variable make_variable(const VariableDeclaration& declaration, const Dataset& dataset) {
  Variable variable;
  variable.name = declaration.name;
  variable.dims = declaration.dim_names();
  variable.units = declaration.units;
  variable.long_name = declaration.long_name;
  variable.flags = declaration.flags;
  variable.values = undefined_values(declaration.type,
                                     static_cast<size_t>(dataset.count(variable.dims)));
  return variable;
}

std::string variables_json() {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const VariableDeclaration& variable : declared_variables()) {
    nlohmann::ordered_json one = {{"name", variable.name},
                                  {"dimensions", variable.dim_names()},
                                  {"type", type_text(variable.type)},
                                  {"units", variable.units},
                                  {"long_name", variable.long_name},
                                  {"definition", variable.definition},
                                  {"written_when", occasion_text(variable)},
                                  {"metrics", variable.measures},
                                  {"file", "results"}};
    for (const FlagMeaning& flag : variable.flags) one["flags"][flag.meaning] = flag.value;
    all.push_back(std::move(one));
  }
  return all.dump(2);
}

std::string variables_markdown() {
  std::string text =
      "## 6. Variables\n\n"
      "Generated from the declarations in `analysis/`; after a change there, run\n"
      "`KVSIM_UPDATE_DOCS=1 kvsim_tests \"[docs]\"`. Undefined values are NaN (255 in `uint8`).\n"
      "n is the number of prompt entries, t a later step, A attention of the full cache, z a "
      "head's\n"
      "output before W_O (W), z^ that of the compressed cache.\n\n"
      "| variable | dimensions | type | unit | meaning | written when |\n"
      "|---|---|---|---|---|---|\n";
  for (const VariableDeclaration& variable : declared_variables())
    text += fmt::format("| `{}` | {} | {} | {} | {}: {} | {} |\n", variable.name,
                        fmt::join(variable.dim_names(), ", "), type_text(variable.type),
                        variable.units, variable.long_name, variable.definition,
                        occasion_text(variable));
  return text;
}

}  // namespace kvsim
