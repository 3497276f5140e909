#include "cli/expected_loss.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/terminal.hpp"
#include "io/tables.hpp"

namespace kvsim::cli {
namespace {

constexpr const char* kVariable = "stream_error";
constexpr size_t kStepsOfALine = 3;
constexpr size_t kLongestName = 24;

/// Index of the smallest budget.
int64_t smallest_budget(const Dataset& results) {
  const auto& ratios = std::get<std::vector<double>>(results.at("budget").values);
  return std::ranges::min_element(ratios) - ratios.begin();
}

}  // namespace

std::vector<ExpectedLoss> expected_losses(const Dataset& results, int64_t policy, int64_t budget,
                                          size_t count) {
  std::vector<ExpectedLoss> losses;
  if (!results.has(kVariable)) return losses;
  const auto errors = results.row(kVariable, {policy, budget});
  const auto& steps = std::get<std::vector<int64_t>>(results.at("step").values);
  for (size_t t = 0; t < errors.size(); ++t)
    if (errors[t] > 0) losses.push_back({steps[t], errors[t]});  // false for NaN
  std::ranges::stable_sort(losses, [](const ExpectedLoss& a, const ExpectedLoss& b) {
    return a.stream_error > b.stream_error;
  });
  losses.resize(std::min(losses.size(), count));
  return losses;
}

std::string expected_loss_text(const std::vector<ExpectedLoss>& losses,
                               const std::vector<std::string>& words) {
  std::string text;
  for (const ExpectedLoss& loss : losses) {
    const auto at = static_cast<size_t>(loss.step);
    text += fmt::format("{}{}{} {:.3g}", text.empty() ? "" : ", ", loss.step,
                        at < words.size() ? " " + quoted_token(words[at]) : "", loss.stream_error);
  }
  return text;
}

std::string expected_loss_table(const Dataset& results, const std::vector<std::string>& words) {
  if (!results.has(kVariable)) return "";
  const int64_t budget = smallest_budget(results);
  const auto& policies = std::get<std::vector<std::string>>(results.at("policy").values);
  const auto& budgets = std::get<std::vector<std::string>>(results.at("budget_label").values);
  std::vector<std::pair<std::string, std::string>> lines;
  size_t width = 0;
  for (size_t p = 0; p < policies.size(); ++p) {
    const auto losses = expected_losses(results, static_cast<int64_t>(p), budget, kStepsOfALine);
    if (losses.empty()) continue;
    lines.emplace_back(printable(policies[p]), expected_loss_text(losses, words));
    const size_t length = lines.back().first.size();
    if (length <= kLongestName) width = std::max(width, length);
  }
  if (lines.empty()) return "";
  std::string table = fmt::format("expected to lose most at budget {} (step{}, stream error)\n",
                                  printable(budgets[static_cast<size_t>(budget)]),
                                  words.empty() ? "" : ", its token");
  for (const auto& [name, text] : lines) {
    const std::string end = name.size() > kLongestName ? fmt::format("\n{:{}}", "", width) : "";
    table += fmt::format("{:<{}}{}  {}\n", name, end.empty() ? width : 0, end, text);
  }
  return table;
}

std::string quoted_token(const std::string& token) {
  std::string shown;
  for (const char c : token) shown += c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string(1, c);
  return '"' + printable(shown) + '"';
}

}  // namespace kvsim::cli
