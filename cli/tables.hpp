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

/// The rows of these measures, for a person or to paste.
std::string best_text(const BestTable& table, const std::vector<std::string>& measures,
                      TableForm form);
std::string best_csv(const BestTable& table);
std::string best_json(const BestTable& table);

// Where a model that ran with the compressed cache would lose most: the steps with the largest
// stream error.

struct ExpectedLoss {
  int64_t step = 0;  ///< position of the query
  double stream_error = 0;
};

/// Of one policy and budget, largest first, at most `count`; steps that were not evaluated or lose
/// nothing are left out, and everything is where the results hold no stream error.
std::vector<ExpectedLoss> expected_losses(const Dataset& results, int64_t policy, int64_t budget,
                                          size_t count);

/// `734 " the" 0.214, 790 "\n" 0.18`; positions only when `words` (the token of each position) is
/// empty.
std::string expected_loss_text(const std::vector<ExpectedLoss>& losses,
                               const std::vector<std::string>& words);

/// A line for each policy at its smallest budget, below a heading; empty when there is nothing.
std::string expected_loss_table(const Dataset& results, const std::vector<std::string>& words);

/// A token between quotes with line ends and the like visible.
std::string quoted_token(const std::string& token);

/// Choice of --equal-bytes: entries per owner and the bytes held, per policy and budget.
std::string equal_bytes_table(const Dataset& results);

}  // namespace kvsim::cli
