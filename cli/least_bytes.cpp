#include "cli/least_bytes.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "analysis/least_cost.hpp"
#include "cli/terminal.hpp"

namespace kvsim::cli {
namespace {

constexpr std::pair<const char*, const char*> kForms[] = {{"flattened", "bytes_flattened"},
                                                          {"padded", "bytes_padded"},
                                                          {"paged", "bytes_paged"},
                                                          {"in place", "bytes_in_place"},
                                                          {"peak", "bytes_peak"}};

const std::vector<std::string>& names(const Dataset& results, const char* axis) {
  return std::get<std::vector<std::string>>(results.at(axis).values);
}

std::string mebibytes(double bytes) {
  return std::isnan(bytes) ? "-" : fmt::format("{:.3f}", bytes / (1 << 20));
}

}  // namespace

std::string equal_bytes_table(const Dataset& results) {
  std::string table = fmt::format("{:<44}{:>8}{:>10}{:>11}{:>11}{:>11}{:>11}\n",
                                  "entries for equal bytes, MiB held", "budget", "entries",
                                  "flattened", "padded", "paged", "in place");
  const auto &policies = names(results, "policy"), &budgets = names(results, "budget_label");
  for (size_t p = 0; p < policies.size(); ++p)
    for (size_t b = 0; b < budgets.size(); ++b) {
      const auto at = [&](const char* variable) {
        return results.row(variable, {static_cast<int64_t>(p), static_cast<int64_t>(b)})[0];
      };
      table += fmt::format("  {:<42}{:>8}{:>10g}", printable(policies[p]), printable(budgets[b]),
                           at("budget_entries"));
      for (size_t form = 0; form < 4; ++form)
        table += fmt::format("{:>11}", mebibytes(at(kForms[form].second)));
      table += "\n";
    }
  return table;
}

std::string least_bytes_table(const Dataset& results, double error) {
  if (!results.has("stream_error_rms"))
    return "least bytes: no stream error, since the trace has no residual_norm\n";
  std::string table = fmt::format("{:<44}", fmt::format("least MiB, stream error {:g}", error));
  for (const auto& [form, variable] : kForms) table += fmt::format("{:>11}", form);
  table += "\n";
  const auto &policies = names(results, "policy"), &budgets = names(results, "budget_label");
  for (size_t p = 0; p < policies.size(); ++p) {
    table += fmt::format("  {:<42}", printable(policies[p]));
    for (const auto& [form, variable] : kForms) {
      std::vector<CostPoint> points;
      for (size_t b = 0; b < budgets.size(); ++b) {
        const auto at = [&](const char* name) {
          return results.row(name, {static_cast<int64_t>(p), static_cast<int64_t>(b)})[0];
        };
        points.push_back({.cost = at(variable), .error = at("stream_error_rms")});
      }
      table += fmt::format("{:>11}", mebibytes(least_cost(std::move(points), error)));
    }
    table += "\n";
  }
  return table + "between budgets by lines in logarithms; -: no budget comes so low\n";
}

}  // namespace kvsim::cli
