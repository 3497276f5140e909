#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/dataset.hpp"

namespace kvsim {

/// What must be so for a variable to be written; bits may be combined.
enum Occasion : unsigned {
  kAlways = 0,
  kResidualNorm = 1,      ///< the trace has residual_norm
  kSpans = 2,             ///< the trace has spans
  kQueryHeads = 4,        ///< a policy of the run has granularity=query
  kPerHead = 8,           ///< --per-head
  kSaveKeep = 16,         ///< --save-keep
  kQuantizes = 32,        ///< a policy of the run quantises
  kRoofline = 64,         ///< --bandwidth and --peak
  kOnRequest = 128,       ///< --metric NAME
  kMerges = 256,          ///< a policy of the run merges
};

/// One variable of a results file. The writer, docs/results.md and `--metric` read this table and
/// nothing else; definitions are those of the section of metrics.md that is named.
struct VariableDeclaration {
  const char* name;
  const char* dims;          ///< separated by blanks
  VariableType type;
  const char* units;
  const char* long_name;
  const char* definition;    ///< how the number is computed; Markdown
  unsigned occasion;
  std::vector<FlagMeaning> flags = {};
  const char* measures = "";   ///< names that `--metric` takes for all variables of a measure,
                               ///< separated by blanks; any of its variables asks for all of them

  std::vector<std::string> dim_names() const;
};

/// The part of the table below that is written on request only.
std::vector<VariableDeclaration> variables_on_request();

/// All variables in the order of the file, coordinates first.
const std::vector<VariableDeclaration>& declared_variables();
const VariableDeclaration& declared(std::string_view name);

/// Names that `--metric` adds variables for: measures, and variables of none.
std::vector<std::string> metrics_on_request();
/// Every name that `--metric` takes: those, and all variables.
std::vector<std::string> known_metrics();

/// The variables of these metrics: a measure, or one of its variables, stands for all of them.
std::set<std::string> variables_of(const std::set<std::string>& metrics);

/// Is this variable written when `occasion` (a union of bits) holds and `metrics` were asked for?
bool is_written(const VariableDeclaration& variable, unsigned occasion,
                const std::set<std::string>& metrics);

/// A variable as declared over the dimensions of the dataset, filled with "undefined": NaN for
/// reals, 255 for flags, 0 for integers.
Variable make_variable(const VariableDeclaration& declaration, const Dataset& dataset);

/// The text of docs/results.md.
std::string variables_markdown();

}  // namespace kvsim
