#include <fmt/format.h>

#include "analysis/measure.hpp"
#include "analysis/ranking.hpp"
#include "analysis/statistics.hpp"
#include "io/paper_table.hpp"
#include "io/side_files.hpp"

namespace kvsim {
namespace {

constexpr const char* kBold = "\033[1m";
constexpr const char* kRed = "\033[31m";
constexpr const char* kPlain = "\033[0m";
constexpr double kLowShare = 0.5;  // retained importance below it is what `outliers` counts

/// One column of numbers: a heading in two lines and the text of each row.
struct Column {
  std::string over;
  std::string head;
  std::string name;  ///< where there is a page's width
  std::vector<std::string> cells;
  std::vector<bool> alarming;
  bool left = false;

  size_t width() const {
    size_t most = std::max(over.size(), head.size());
    for (const std::string& cell : cells) most = std::max(most, cell.size());
    return most;
  }
};

constexpr const char* kError = "";
constexpr const char* kShare = "{:.3f}";
constexpr const char* kCount = "{:.0f}";

/// Errors span decades: three significant digits, without exponents where that reads well.
std::string number_text(double value, const char* format) {
  if (std::isnan(value)) return "-";
  if (*format != '\0') return fmt::format(fmt::runtime(format), value);
  if (value == 0) return "0";
  return value < 1e-3 || value >= 1e4 ? fmt::format("{:.1e}", value) : fmt::format("{:.3f}", value);
}

double sum(std::span<const double> values) {
  const std::vector<double> known = defined(values);
  return known.empty() ? kUndefined : std::accumulate(known.begin(), known.end(), 0.0);
}

double itself(std::span<const double> values) { return values[0]; }

/// A column of numbers: a variable folded over what follows policy and budget.
struct Shown {
  const char *over, *head, *name, *variable;
  double (*fold)(std::span<const double>);
  const char* format;
  bool alarm_when_low = false;
};
/// The number that policies are judged by stands first: of a closed loop, of a replay.
constexpr Shown kLoss = {"loss,", "nats", "loss, nats", "", itself, kError};
constexpr Shown kStream = {"stream", "error", "stream error", "stream_error_rms", itself, kError};
constexpr Shown kShown[] = {
    {"worst", "step", "worst step", "kl_divergence_max", itself, kError},
    {"log-likelihood", "lost", "log-likelihood lost", "nll_difference_mean", itself, kError},
    {"same", "token", "same token", "top1_agreement_mean", itself, kShare},
    {"tokens", "written", "tokens written", "generated_agreement", itself, kCount},
    {"retained", "mean", "importance retained, mean", "retained_importance_mean", mean, kShare,
     true},
    {"importance", "worst", "importance retained, worst", "retained_importance_min", minimum,
     kShare, true},
    {"", "outliers", "outliers", "outlier_count", sum, kCount},
    {"output", "mean", "output error, mean", "output_error_mean", mean, kError},
    {"error", "worst", "output error, worst", "output_error_max", maximum, kError},
    {"residual", "worst", "residual error, worst", "residual_error_max", maximum, kError},
    {"", "smaller", "smaller", "compression", itself, "{:.1f}x"}};

/// Policies in `order`.
void add_column(const Dataset& dataset, const std::vector<int64_t>& order, const Shown& shown,
                std::vector<Column>& columns) {
  if (!dataset.has(shown.variable)) return;
  Column column{shown.over, shown.head, shown.name, {}, {}};
  for (const int64_t p : order)
    for (int64_t b = 0; b < dataset.size("budget"); ++b) {
      const double value = shown.fold(dataset.row(shown.variable, {p, b}));
      column.cells.push_back(number_text(value, shown.format));
      column.alarming.push_back(shown.alarm_when_low && value < kLowShare);
    }
  columns.push_back(std::move(column));
}

/// Policy (named once per block) and budget as typed.
std::vector<Column> name_columns(const Dataset& dataset, const std::vector<int64_t>& order) {
  const auto& policies = dataset.texts("policy");
  const auto& budgets = dataset.texts("budget_label");
  std::vector<Column> columns(2);
  columns[0] = {"", "policy", "policy", {}, {}, true};
  columns[1] = {"", "budget", "kept", {}, {}};
  for (const int64_t p : order)
    for (size_t b = 0; b < budgets.size(); ++b) {
      columns[0].cells.push_back(b == 0 ? policies[p] : "");
      columns[1].cells.push_back(budgets[b]);
    }
  return columns;
}

/// Takes names longer than `longest` out of a column: they stand in a line above their row.
std::vector<std::string> take_long(std::vector<std::string>& names, size_t longest) {
  std::vector<std::string> taken(names.size());
  for (size_t row = 0; row < names.size(); ++row)
    if (names[row].size() > longest) std::swap(taken[row], names[row]);
  return taken;
}

/// Behind the error of each row: best *, not told apart from it ~, holds more > or less <.
void add_marks(const Verdict& found, Column& column) {
  size_t row = 0;
  for (const int64_t p : found.order)
    for (const Mark mark : found.marks[p])
      column.cells[row++] += " *~><"[static_cast<size_t>(mark)];
}

std::string padded(const std::string& text, size_t width, bool left) {
  return left ? fmt::format("{:<{}}", text, width) : fmt::format("{:>{}}", text, width);
}

std::string line_of(const std::vector<Column>& columns,
                    const std::function<std::string(const Column&)>& cell) {
  std::string line;
  for (const Column& column : columns) line += (line.empty() ? "" : "  ") + cell(column);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line + "\n";
}

/// Columns of both forms of the table.
struct Summary {
  Verdict found;
  std::vector<int64_t> order;  ///< of policies
  std::vector<Column> columns;
};

Summary summarised(const Dataset& dataset) {
  Summary summary{verdict(dataset), {}, {}};
  summary.order = summary.found.order;
  if (summary.order.empty()) summary.order = ascending<int64_t>(dataset.size("policy"));
  summary.columns = name_columns(dataset, summary.order);
  const char* const lead = judged_by(dataset);
  Shown first = kStream;
  if (lead != nullptr && std::string_view(lead).starts_with("kl")) {
    first = kLoss;
    first.variable = lead;
  }
  add_column(dataset, summary.order, first, summary.columns);
  for (const Shown& shown : kShown) add_column(dataset, summary.order, shown, summary.columns);
  return summary;
}

/// The column that is marked: of what the policies are judged by.
constexpr size_t kMarked = 2;

}  // namespace

PaperTable paper_table(const Dataset& dataset, const std::string& title) {
  const Summary summary = summarised(dataset);
  PaperTable table;
  table.title = title;
  table.from = provenance(dataset);
  for (const Column& column : summary.columns) table.columns.push_back({column.name, column.left});
  table.rows.resize(summary.columns[0].cells.size());
  for (const Column& column : summary.columns)
    for (size_t row = 0; row < table.rows.size(); ++row)
      table.rows[row].push_back({column.cells[row]});
  size_t row = 0;
  for (const int64_t p : summary.found.order)
    for (const Mark mark : summary.found.marks[p]) table.rows[row++][kMarked].mark = mark;
  std::string notes;
  if (const std::string layers = stream_error_layers(dataset); !layers.empty())
    notes += "stream error: of " + layers + "\n";
  notes += verdict_text(dataset, summary.found, kPaperMarks);
  table.notes = lines_of(notes);
  return table;
}

std::string summary_table(const Dataset& dataset, const SummaryStyle& style) {
  auto [found, order, columns] = summarised(dataset);
  const std::vector<std::string> own_lines = take_long(columns[0].cells,
                                                       std::max(16, style.width - 62));
  if (!found.order.empty()) add_marks(found, columns[kMarked]);

  std::string text;
  const auto heading = [&](const std::string Column::*part) {
    return line_of(columns, [&](const Column& column) {
      return padded(column.*part, column.width(), column.left);
    });
  };
  const std::string over = heading(&Column::over);
  const std::string head = heading(&Column::head);
  text += style.color ? kBold + over + head + kPlain : over + head;
  for (size_t row = 0; row < columns[0].cells.size(); ++row) {
    if (!own_lines[row].empty()) text += own_lines[row] + "\n";
    text += line_of(columns, [&](const Column& column) {
      const std::string cell = padded(column.cells[row], column.width(), column.left);
      const bool alarming = style.color && !column.alarming.empty() && column.alarming[row];
      return alarming ? kRed + cell + kPlain : cell;
    });
  }
  if (const std::string layers = stream_error_layers(dataset); !layers.empty())
    text += "stream error: of " + layers + "\n";
  text += verdict_text(dataset, found) + advice(dataset, found);
  return text;
}

}  // namespace kvsim
