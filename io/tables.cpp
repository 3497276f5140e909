#include "io/tables.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "sim/core/decimal.hpp"

namespace kvsim {
namespace {

/// Would a spreadsheet run it? Numbers begin with a sign, too.
bool is_formula(const std::string& cell) {
  if (cell.empty() || std::string("=+-@\t\r\n").find(cell[0]) == std::string::npos) return false;
  char* end = nullptr;
  std::strtod(cell.c_str(), &end);
  return end != cell.c_str() + cell.size();
}

void add_cell(std::string& line, const std::string& text) {
  const std::string cell = is_formula(text) ? "'" + text : text;
  if (cell.find_first_of(",;\t\"\n\r") == std::string::npos) {
    line += cell;
    return;
  }
  line += '"';
  for (const char c : cell) {
    if (c == '"') line += '"';
    line += c;
  }
  line += '"';
}

}  // namespace

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += ',';
    add_cell(line, cells[i]);
  }
  return line + "\n";
}

namespace {

/// Columns of a tidy table after policy, budget, layer, metric and value; and those that only
/// tables of results with such measures have.
constexpr const char* kFurther[] = {"head", "kv_head", "span"};
constexpr const char* kOfMeasures[] = {"estimator", "share", "indicator"};

std::vector<std::string> further_columns(const std::vector<TableSource>& sources) {
  std::vector<std::string> columns(std::begin(kFurther), std::end(kFurther));
  for (const char* dim : kOfMeasures)
    for (const TableSource& source : sources)
      if (source.dataset->has_dimension(dim) && std::ranges::find(columns, dim) == columns.end())
        columns.emplace_back(dim);
  return columns;
}

/// Text of one index of a dimension: its coordinate's value.
std::string label(const Dataset& dataset, const std::string& dim, int64_t index) {
  const auto at = static_cast<size_t>(index);
  return std::visit(
      [at](const auto& values) -> std::string {
        using Value = std::decay_t<decltype(values[0])>;
        if constexpr (std::is_same_v<Value, std::string>) {
          return values[at];
        } else if constexpr (std::is_same_v<Value, double>) {
          return shortest(values[at]);
        } else {
          return std::to_string(values[at]);
        }
      },
      dataset.at(dim).values);
}

bool is_summary(const Variable& variable) {
  if (variable.type() != VariableType::float64 || variable.dims.size() < 2) return false;
  return std::ranges::all_of(variable.dims, [](const std::string& dim) {
    const auto is = [&](const char* known) { return dim == known; };
    return is("policy") || is("budget") || is("layer") || std::ranges::any_of(kFurther, is) ||
           std::ranges::any_of(kOfMeasures, is);
  });
}

/// Calls row(variable, indices of its dimensions, value) for every summary.
using RowVisitor = std::function<void(const Variable&, const std::vector<int64_t>&, double)>;
void for_rows(const Dataset& dataset, const RowVisitor& row) {
  for (const Variable& variable : dataset.variables()) {
    if (!is_summary(variable)) continue;
    std::vector<int64_t> index(variable.dims.size(), 0);
    for (const double value : std::get<std::vector<double>>(variable.values)) {
      row(variable, index, value);
      for (size_t axis = index.size(); axis-- > 0;) {
        if (++index[axis] < dataset.size(variable.dims[axis])) break;
        index[axis] = 0;
      }
    }
  }
}

std::string number(double value) { return std::isnan(value) ? "nan" : shortest(value); }

std::string label_of(const Dataset& dataset, const Variable& variable,
                     const std::vector<int64_t>& index, const std::string& dim) {
  const auto found = std::find(variable.dims.begin(), variable.dims.end(), dim);
  if (found == variable.dims.end()) return "";
  return label(dataset, dim, index[static_cast<size_t>(found - variable.dims.begin())]);
}

}  // namespace

std::string tidy_csv(const std::vector<TableSource>& sources) {
  const std::vector<std::string> further = further_columns(sources);
  std::vector<std::string> head = {"policy", "budget", "layer", "metric", "value"};
  head.insert(head.end(), further.begin(), further.end());
  const bool several = sources.size() > 1;
  if (several) head.emplace_back("trace");
  std::string text = csv_line(head);
  for (const auto& [trace, dataset] : sources) {
    for_rows(*dataset,
             [&](const Variable& variable, const std::vector<int64_t>& index, double value) {
      const auto cell = [&](const std::string& dim) {
        return label_of(*dataset, variable, index, dim);
      };
      std::vector<std::string> row = {cell("policy"), cell("budget"), cell("layer"), variable.name,
                                      number(value)};
      std::ranges::transform(further, std::back_inserter(row), cell);
      if (several) row.push_back(trace);
      text += csv_line(row);
    });
  }
  return text;
}

std::string tidy_json(const std::vector<TableSource>& sources) {
  std::string text = "[";
  for (const auto& [trace, dataset] : sources) {
    for_rows(*dataset,
             [&](const Variable& variable, const std::vector<int64_t>& index, double value) {
      nlohmann::ordered_json row;
      for (size_t axis = 0; axis < index.size(); ++axis) {
        const std::string& dim = variable.dims[axis];
        const std::string name = label(*dataset, dim, index[axis]);
        switch (dataset->at(dim).type()) {
          case VariableType::text: row[dim] = name; break;
          case VariableType::float64: row[dim] = dataset->row(dim, {index[axis]})[0]; break;
          default: row[dim] = std::stoll(name);
        }
      }
      row["metric"] = variable.name;
      row["value"] = std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
      if (sources.size() > 1) row["trace"] = trace;
      text += (text.size() > 1 ? ",\n " : "\n ") + row.dump();
    });
  }
  return text + "\n]\n";
}

}  // namespace kvsim
