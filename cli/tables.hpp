#pragma once
#include "analysis/dataset.hpp"
#include "cli/command.hpp"
#include "run/sweep/sweep.hpp"

/// Parts that commands share which read results files: attributes, a choice of one policy, budget,
/// layer or step by what it is called, and the trace that the results were made from.
namespace kvsim::cli {

/// A file of a replay or of a closed loop; one that is no HDF5 file at all is bad data that says
/// what it is instead.
Dataset open_netcdf(const std::string& path);

/// A results file of a replay; bad data without these variables.
Dataset open_results(const std::string& path, const std::vector<const char*>& variables);

/// Marks in JSON, in the order of Mark.
inline const std::vector<std::string> kMarks = {"", "best", "equal", "more", "less"};

/// Caption of a table of these results in a paper.
std::string title_of(const Dataset& results);

/// Index of what an option names among the values of a variable (texts or integers); -1 without the
/// option. A name that the results do not have is bad data.
int64_t choice(const Values& values, const Dataset& results, const char* option,
               const char* variable);

/// Path of the trace: the one given, or where the results say, or by its name beside them, in this
/// folder or in data/. Empty when it is not there.
std::string trace_beside(const std::string& given, const Dataset& results, const std::string& path);

// The table of best settings that `kvsim sweep` ends with, in its forms.

/// For a person: the rows of these measures.
std::string best_text(const BestTable& table, const std::vector<std::string>& measures);
/// A form to paste.
PaperTable best_paper(const BestTable& table, const std::vector<std::string>& measures);
std::string best_csv(const BestTable& table);
std::string best_json(const BestTable& table);

}  // namespace kvsim::cli
