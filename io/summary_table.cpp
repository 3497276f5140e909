#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "analysis/stream_layers.hpp"
#include "analysis/summary.hpp"
#include "io/tables.hpp"

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
  std::vector<std::string> cells;
  std::vector<bool> alarming;
  bool left = false;

  size_t width() const {
    size_t most = std::max(over.size(), head.size());
    for (const std::string& cell : cells) most = std::max(most, cell.size());
    return most;
  }
};

std::string share_text(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.3f}", value);
}

/// Errors span decades: three significant digits, without exponents where that reads well.
std::string error_text(double value) {
  if (std::isnan(value)) return "-";
  if (value == 0) return "0";
  return value < 1e-3 || value >= 1e4 ? fmt::format("{:.1e}", value) : fmt::format("{:.3f}", value);
}

std::string count_text(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.0f}", value);
}

std::string ratio_text(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.1f}x", value);
}

double sum(std::span<const double> values) {
  const double average = mean(values);
  if (std::isnan(average)) return average;
  double total = 0;
  for (const double value : values) total += std::isnan(value) ? 0 : value;
  return total;
}

using Fold = double (*)(std::span<const double>);
double itself(std::span<const double> values) { return values[0]; }

/// Adds one column: `variable` folded over what follows policy and budget.
void add_column(const Dataset& dataset, std::vector<Column>& columns, const char* over,
                const char* head, const char* variable, Fold fold, std::string (*text)(double),
                bool alarm_when_low = false) {
  if (!dataset.has(variable)) return;
  Column column{over, head, {}, {}};
  for (int64_t p = 0; p < dataset.size("policy"); ++p) {
    for (int64_t b = 0; b < dataset.size("budget"); ++b) {
      const double value = fold(dataset.row(variable, {p, b}));
      column.cells.push_back(text(value));
      column.alarming.push_back(alarm_when_low && value < kLowShare);
    }
  }
  columns.push_back(std::move(column));
}

/// Policy (named once per block) and budget as typed.
std::vector<Column> name_columns(const Dataset& dataset, int width) {
  const auto& policies = std::get<std::vector<std::string>>(dataset.at("policy").values);
  const auto& budgets = std::get<std::vector<std::string>>(dataset.at("budget_label").values);
  const auto longest = static_cast<size_t>(std::max(16, width - 62));
  std::vector<Column> columns(2);
  columns[0] = {"", "policy", {}, {}, true};
  columns[1] = {"", "budget", {}, {}};
  for (const std::string& policy : policies) {
    for (size_t b = 0; b < budgets.size(); ++b) {
      std::string name = b == 0 ? policy : "";
      if (name.size() > longest) name = name.substr(0, longest - 3) + "...";
      columns[0].cells.push_back(std::move(name));
      columns[1].cells.push_back(budgets[b]);
    }
  }
  return columns;
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

}  // namespace

std::string summary_table(const Dataset& dataset, const SummaryStyle& style) {
  std::vector<Column> columns = name_columns(dataset, style.width);
  add_column(dataset, columns, "stream", "error", "stream_error_rms", itself, error_text);
  add_column(dataset, columns, "retained", "mean", "retained_importance_mean", mean, share_text,
             true);
  add_column(dataset, columns, "importance", "worst", "retained_importance_min", minimum,
             share_text, true);
  add_column(dataset, columns, "", "outliers", "outlier_count", sum, count_text);
  add_column(dataset, columns, "output", "mean", "output_error_mean", mean, error_text);
  add_column(dataset, columns, "error", "worst", "output_error_max", maximum, error_text);
  add_column(dataset, columns, "residual", "worst", "residual_error_max", maximum, error_text);
  add_column(dataset, columns, "", "smaller", "compression", itself, ratio_text);

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
    text += line_of(columns, [&](const Column& column) {
      const std::string cell = padded(column.cells[row], column.width(), column.left);
      const bool alarming = style.color && !column.alarming.empty() && column.alarming[row];
      return alarming ? kRed + cell + kPlain : cell;
    });
  }
  if (const std::string layers = stream_error_layers(dataset); !layers.empty())
    text += "stream error: of " + layers + "\n";
  return text;
}

}  // namespace kvsim
