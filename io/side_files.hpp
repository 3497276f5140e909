#pragma once
#include "analysis/dataset.hpp"

namespace kvsim {

/// Name of it in messages.
inline constexpr const char* kResultsFile = "results file of kvsim";

/// Reads a results file back into a Dataset: dimensions with their coordinates, variables with
/// units and long name, and the attributes of the run. A file that is not one written by
/// write_results() is bad data.
Dataset read_results(const std::string& path);

/// Writes a dataset as netCDF-4 (results-format of the design), so that xarray, netCDF-C and any
/// HDF5 tool read it. The target appears when it is complete and not before. Callers check the
/// target with check_target() before any work.
void write_results(const Dataset& dataset, const std::string& target);

/// One line of a CSV file as RFC 4180 has it, with a plain line end: cells with commas, semicolons,
/// tabs, quotes or line ends are quoted, quotes doubled. A text that a spreadsheet would take for a
/// formula (it begins with = + - @ or white space and is no number) gets a ' before it.
std::string csv_line(const std::vector<std::string>& cells);

/// A results file in a table, with the name of its trace.
struct TableSource {
  std::string trace;
  const Dataset* dataset = nullptr;
};

/// The summaries of results files, one value per row: all variables over policy, budget and, where
/// they have them, layer, head, kv_head and span, and those of measures without a policy; nothing
/// per step or position. Columns: policy, budget, layer, metric, value, then head, kv_head, span
/// and the measures' own (empty where a variable has none), and trace when there are several.
/// Comma-separated, quoted where needed; undefined values are `nan`.
std::string tidy_csv(const std::vector<TableSource>& sources);

/// Rows as one JSON array of objects, without the columns a row does not have; undefined
/// values are null.
std::string tidy_json(const std::vector<TableSource>& sources);

struct SummaryStyle {
  bool color = false;
  int width = 80;  ///< columns of the terminal
};

/// The table a person reads after a run: per policy and budget the stream error (when there is
/// one), the mean and worst retained importance, outlier count, mean and worst output error, worst
/// residual error (likewise) and compression; over layers means of means, worst of worst, sums of
/// counts. Policies are sorted by stream error and the best at each budget are marked
/// (ranking.hpp); the lines below say how, and what to use. A line says so when the stream error is
/// not of all layers of the model.
std::string summary_table(const Dataset& dataset, const SummaryStyle& style);

// Files that a policy record names. Every fault is bad data (one line), a missing file too.

/// `layers/<layer>/score` of an HDF5 file: [owners][entries], where an owner is a KV head, or a
/// query head for records with granularity=query. Scores must be finite.
Table<double> read_scores(const std::string& path, int layer, int64_t owners, int64_t entries);

/// Folder in which this process finds the scores of functions in Python
/// (`python:FILE.py:FUNCTION`): of each function a folder, in it a file per trace. Without one
/// `scores_file` refuses functions.
void set_scores_folder(const std::string& folder);

/// The file that `scores` of a record means on a trace: itself, or that of a function's scores.
std::string scores_file(const std::string& scores, const std::string& trace);

/// Does `scores` of a record name a function?
bool is_function(const std::string& scores);
/// Path in the name of a function.
std::string function_file(const std::string& function);

/// JSON that a file of scores holds about the function that computed them; empty without one.
std::string described_function(const std::string& file);

/// A text table: one line per model layer, `columns` numbers each, separated by white space; `#`
/// starts a comment, lines without numbers do not count. Returns [rows][columns].
Table<double> read_table(const std::string& path, int64_t rows, int64_t columns);

/// "xxh3-128:" and the hex XXH3 128-bit digest of a file's bytes.
std::string file_digest(const std::string& path);
/// 32 hex digits: the XXH3 128-bit digest of a text.
std::string text_digest(std::string_view text);

}  // namespace kvsim
