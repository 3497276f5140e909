#pragma once
#include <string>
#include <vector>

#include "analysis/dataset.hpp"

namespace kvsim {

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
/// (verdict.hpp); the lines below say how, and what to use. A line says so when the stream error is
/// not of all layers of the model.
std::string summary_table(const Dataset& dataset, const SummaryStyle& style);

}  // namespace kvsim
