#include "cli/after_replay.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <random>

#include "analysis/best_setting.hpp"
#include "cli/terminal.hpp"
#include "io/side_files.hpp"
#include "run/check/check_layer.hpp"

namespace kvsim::cli {
namespace {

/// The CPU backend for the instruction set that the environment names; "" is the widest.
std::unique_ptr<Backend> backend_for(const char* isa) {
  const char* const before = std::getenv("KVSIM_ISA");
  const std::string kept = before != nullptr ? before : "";
  *isa == '\0' ? unsetenv("KVSIM_ISA") : setenv("KVSIM_ISA", isa, 1);
  std::unique_ptr<Backend> made = make_cpu_backend();
  kept.empty() ? unsetenv("KVSIM_ISA") : setenv("KVSIM_ISA", kept.c_str(), 1);
  return made;
}

/// Instruction set of a CPU backend, the last word of its device.
std::string isa_of(const Backend& backend) {
  const std::string device = backend.device();
  return device.substr(device.rfind(' ') + 1);
}

/// Another way to compute the same, and what it is called; the same way where there is no other.
std::pair<std::unique_ptr<Backend>, std::string> another(const Backend& backend) {
  if (backend.name() != std::string("cpu")) return {backend_for(""), "the CPU"};
  auto other = backend_for(isa_of(backend) == "portable" ? "" : "portable");
  std::string name = isa_of(*other);
  return {std::move(other), std::move(name)};
}

/// "output_error 1.1e-06, ..." with the largest first.
std::string differences(std::vector<CheckedVariable> variables, size_t most) {
  std::ranges::stable_sort(variables, std::greater<>(), &CheckedVariable::difference);
  std::vector<std::string> said;
  for (const CheckedVariable& one : variables)
    if (said.size() < most) said.push_back(fmt::format("{} {:.1e}", one.name, one.difference));
  if (variables.size() > most) said.push_back(fmt::format("{} more", variables.size() - most));
  return said.empty() ? "nothing to compare" : fmt::format("{}", fmt::join(said, ", "));
}

double largest(const std::vector<CheckedVariable>& variables) {
  double most = 0;
  for (const CheckedVariable& one : variables) most = std::max(most, one.difference);
  return most;
}

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
                                                          {"in place", "bytes_in_place"},
                                                          {"peak", "bytes_peak"}};

std::string mebibytes(double bytes) {
  return std::isnan(bytes) ? "-" : fmt::format("{:.3f}", bytes / (1 << 20));
}

}  // namespace

bool check_replay(const TraceReader& reader, const StudyOptions& options, const Dataset& results,
                  Backend& backend, std::FILE* out) {
  const auto& layers = results.values<int32_t>("layer");
  std::random_device dice;
  const int layer = layers[dice() % layers.size()];
  const auto [other, name] = another(backend);
  const LayerCheckResult found = check_run(reader, options, results, layer, backend, *other);
  const bool plain_good = largest(found.plain) <= kPlainLimit;
  // Scores that are level to the last bit may be ranked otherwise: other sets lose other amounts.
  const bool other_good = found.moved > 0 || largest(found.other) <= kOtherLimit;
  fmt::print(out, "\ncheck of layer {}: largest differences, relative above 1\n", layer);
  fmt::print(out, "  {:<18} {}{}\n", "plain float64", differences(found.plain, 3),
             plain_good ? "" : "  FAILED");
  if (!found.left_out.empty())
    fmt::print(out, "  {:<18} not compared there, since more than dropping is done\n",
               printable(fmt::format("{}", fmt::join(found.left_out, "; "))));
  fmt::print(out, "  {:<18} {}; {} of {} kept entries are others{}\n", name,
             differences(found.other, 3), found.moved, found.kept, other_good ? "" : "  FAILED");
  if (plain_good && other_good) return true;
  print_error(fmt::format("{}: layer {} differs by more than {:g}: {}", reader.info().path, layer,
                          kPlainLimit, "this machine, or this build of kvsim, computes wrongly"));
  return false;
}

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

std::string least_bytes_table(const Dataset& results, double error) {
  if (!results.has("stream_error_rms"))
    return "least bytes: no stream error, since the trace has no residual_norm\n";
  std::string table = fmt::format("{:<44}", fmt::format("least MiB, stream error {:g}", error));
  for (const auto& [form, variable] : kForms) table += fmt::format("{:>11}", form);
  table += "\n";
  const auto &policies = results.texts("policy"), &budgets = results.texts("budget_label");
  for (int64_t p = 0; p < std::ssize(policies); ++p) {
    table += fmt::format("  {:<42}", printable(policies[p]));
    for (const auto& [form, variable] : kForms) {
      std::vector<CostPoint> points;
      for (int64_t b = 0; b < std::ssize(budgets); ++b) {
        const auto at = [&](const char* name) { return results.row(name, {p, b})[0]; };
        points.push_back({.cost = at(variable), .error = at("stream_error_rms")});
      }
      table += fmt::format("{:>11}", mebibytes(least_cost(std::move(points), error)));
    }
    table += "\n";
  }
  return table + "between budgets by lines in logarithms; -: no budget comes so low\n";
}

}  // namespace kvsim::cli
