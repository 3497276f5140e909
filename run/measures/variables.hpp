#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/dataset.hpp"

namespace kvsim {

struct RunShape;
struct StudyOptions;

/// Something that holds for some runs and not for others; run/measures/conditions.hpp has the
/// common ones.
struct Condition {
  const char* text;  ///< for docs/results.md
  bool (*holds)(const RunShape& run);
};

/// One variable of a results file, as its measure declares it. Files, docs/results.md, joins and
/// `--metric` read the declarations and nothing else.
struct VariableDeclaration {
  const char* name;
  const char* dims = "";  ///< separated by blanks
  VariableType type = VariableType::float64;
  const char* units = "1";
  const char* long_name = "";
  const char* definition = "";  ///< how the number is computed; Markdown
  /// All must hold, or the variable is not written even when it is asked for.
  std::vector<const Condition*> needs = {};
  /// What makes the run write it unasked; null: it is written on request only.
  const Condition* when = nullptr;
  std::vector<FlagMeaning> flags = {};
  const char* beside = "";  ///< a record that is replayed beside the run's, but not shown
  /// Values that are known before anything is measured: of coordinates, and what describes them.
  VariableValues (*known)(const RunShape& run) = nullptr;
  /// Names that `--metric` takes for all variables of a measure, separated by blanks; any of them
  /// asks for all. Filled in by the measure.
  std::string measures = "";

  std::vector<std::string> dim_names() const;
  bool is_coordinate() const { return std::string_view(dims) == name; }
};

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

/// The text of docs/results.md.
std::string variables_markdown();

}  // namespace kvsim
