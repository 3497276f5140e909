#include "cli/after_replay.hpp"

#include <fmt/format.h>

#include "cli/terminal.hpp"

namespace kvsim::cli {
namespace {

constexpr const char* kVariable = "stream_error";
constexpr size_t kStepsOfALine = 3;
constexpr size_t kLongestName = 24;

int64_t smallest_budget(const Dataset& results) {
  const auto& ratios = results.values<double>("budget");
  return std::ranges::min_element(ratios) - ratios.begin();
}

constexpr std::pair<const char*, const char*> kForms[] = {{"flattened", "bytes_flattened"},
                                                          {"padded", "bytes_padded"},
                                                          {"paged", "bytes_paged"},
                                                          {"in place", "bytes_in_place"}};

std::string mebibytes(double bytes) {
  return std::isnan(bytes) ? "-" : fmt::format("{:.3f}", bytes / (1 << 20));
}

}  // namespace

std::vector<ExpectedLoss> expected_losses(const Dataset& results, int64_t policy, int64_t budget,
                                          size_t count) {
  std::vector<ExpectedLoss> losses;
  if (!results.has(kVariable)) return losses;
  const auto errors = results.row(kVariable, {policy, budget});
  const auto& steps = results.values<int64_t>("step");
  for (size_t t = 0; t < errors.size(); ++t)
    if (errors[t] > 0) losses.push_back({steps[t], errors[t]});  // false for NaN
  std::ranges::stable_sort(losses, std::greater<>(), &ExpectedLoss::stream_error);
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
  const auto& policies = results.texts("policy");
  const auto& budgets = results.texts("budget_label");
  std::vector<std::pair<std::string, std::string>> lines;
  size_t width = 0;
  for (int64_t p = 0; p < std::ssize(policies); ++p) {
    const auto losses = expected_losses(results, p, budget, kStepsOfALine);
    if (losses.empty()) continue;
    lines.emplace_back(printable(policies[p]), expected_loss_text(losses, words));
    const size_t length = lines.back().first.size();
    if (length <= kLongestName) width = std::max(width, length);
  }
  if (lines.empty()) return "";
  std::string table = fmt::format("expected to lose most at budget {} (step{}, stream error)\n",
                                  printable(budgets[budget]), words.empty() ? "" : ", its token");
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

std::string equal_bytes_table(const Dataset& results) {
  std::string table = fmt::format("{:<44}{:>8}{:>10}{:>11}{:>11}{:>11}{:>11}\n",
                                  "entries for equal bytes, MiB held", "budget", "entries",
                                  "flattened", "padded", "paged", "in place");
  const auto &policies = results.texts("policy"), &budgets = results.texts("budget_label");
  for (int64_t p = 0; p < std::ssize(policies); ++p)
    for (int64_t b = 0; b < std::ssize(budgets); ++b) {
      const auto at = [&](const char* variable) { return results.row(variable, {p, b})[0]; };
      table += fmt::format("  {:<42}{:>8}{:>10g}", printable(policies[p]), printable(budgets[b]),
                           at("budget_entries"));
      for (size_t form = 0; form < 4; ++form)
        table += fmt::format("{:>11}", mebibytes(at(kForms[form].second)));
      table += "\n";
    }
  return table;
}

}  // namespace kvsim::cli
