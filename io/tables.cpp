#include "io/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "sim/core/decimal.hpp"

namespace kvsim {
namespace {

/// Columns of a tidy table after policy, budget, layer, metric and value.
constexpr const char* kFurther[] = {"head", "kv_head", "span"};

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
  if (variable.dims[0] != "policy" || variable.dims[1] != "budget") return false;
  return std::all_of(variable.dims.begin() + 2, variable.dims.end(), [](const std::string& dim) {
    return dim == "layer" || dim == "head" || dim == "kv_head" || dim == "span";
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

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

std::string number(double value) { return std::isnan(value) ? "nan" : shortest(value); }

std::string label_of(const Dataset& dataset, const Variable& variable,
                     const std::vector<int64_t>& index, const char* dim) {
  const auto found = std::find(variable.dims.begin(), variable.dims.end(), dim);
  if (found == variable.dims.end()) return "";
  return label(dataset, dim, index[static_cast<size_t>(found - variable.dims.begin())]);
}

}  // namespace

std::string tidy_csv(const std::vector<TableSource>& sources) {
  std::string text = "policy,budget,layer,metric,value";
  for (const char* dim : kFurther) text += fmt::format(",{}", dim);
  const bool several = sources.size() > 1;
  text += several ? ",trace\n" : "\n";
  for (const auto& [trace, dataset] : sources) {
    for_rows(*dataset, [&](const Variable& variable, const std::vector<int64_t>& index,
                           double value) {
      const auto cell = [&](const char* dim) {
        return quoted(label_of(*dataset, variable, index, dim));
      };
      text += fmt::format("{},{},{},{},{}", cell("policy"), cell("budget"), cell("layer"),
                          variable.name, number(value));
      for (const char* dim : kFurther) text += "," + cell(dim);
      text += several ? "," + quoted(trace) + "\n" : "\n";
    });
  }
  return text;
}

std::string tidy_json(const std::vector<TableSource>& sources) {
  std::string text = "[";
  for (const auto& [trace, dataset] : sources) {
    for_rows(*dataset, [&](const Variable& variable, const std::vector<int64_t>& index,
                           double value) {
      nlohmann::ordered_json row;
      row["policy"] = label_of(*dataset, variable, index, "policy");
      row["budget"] = dataset->row("budget", {index[1]})[0];
      for (size_t axis = 2; axis < index.size(); ++axis) {
        const std::string& dim = variable.dims[axis];
        const std::string name = label(*dataset, dim, index[axis]);
        if (dim == "span") {
          row[dim] = name;
        } else {
          row[dim] = std::stoll(name);
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
