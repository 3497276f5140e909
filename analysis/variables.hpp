#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/measure.hpp"

namespace kvsim {

/// All variables, coordinates first, then measure by measure.
const std::vector<VariableDeclaration>& declared_variables();
const VariableDeclaration& declared(std::string_view name);

/// Names that `--metric` adds variables for: measures, and variables of none.
std::vector<std::string> metrics_on_request();
/// Every name that `--metric` takes: those, and all variables.
std::vector<std::string> known_metrics();

/// The variables of these metrics: a measure, or one of its variables, stands for all of them.
std::set<std::string> variables_of(const std::set<std::string>& metrics);

/// Is this variable written in a run whose options ask for variables by name?
bool is_written(const VariableDeclaration& variable, const RunShape& run);

/// Variables that some record of the run brings along: written unasked, but not in every run.
std::set<std::string> variables_brought(const RunShape& run);

/// A variable as declared over the dimensions of the dataset, filled with "undefined": NaN for
/// reals, 255 for flags, 0 for integers.
Variable make_variable(const VariableDeclaration& declaration, const Dataset& dataset);

/// Every variable with name, dimensions, type, unit, meaning, definition and when it is written.
std::string variables_json();
/// The text of docs/results.md.
std::string variables_markdown();

}  // namespace kvsim
