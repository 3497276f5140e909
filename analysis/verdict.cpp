#include "analysis/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "analysis/statistics.hpp"
#include "analysis/summary.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

using Mark = Verdict::Mark;

constexpr double kLeastError = 1e-12;  // of a logarithm: a budget at which nothing is lost
constexpr double kEqualError = 1e-7;   // equal kept sets, summed in another order
constexpr uint64_t kSeed = 0;

double summary_of(const Dataset& results, int64_t policy, int64_t budget) {
  return results.row("stream_error_rms", {policy, budget})[0];
}

/// Mean over budgets of the logarithm of the error.
double log_mean(const Dataset& results, int64_t policy) {
  std::vector<double> logs;
  for (int64_t b = 0; b < results.size("budget"); ++b)
    logs.push_back(std::log(std::max(kLeastError, summary_of(results, policy, b))));
  const double found = mean(logs);
  return std::isnan(found) ? std::numeric_limits<double>::infinity() : found;
}

bool loses_nothing(const Dataset& results, int64_t policy) {
  for (int64_t b = 0; b < results.size("budget"); ++b)
    if (!(summary_of(results, policy, b) <= kLeastError)) return false;
  return true;
}

/// Whether the steps of this trace leave open which of the two has the smaller error.
bool open_between(const Dataset& results, int64_t policy, int64_t best, int64_t budget) {
  const auto errors = results.row("stream_error", {policy, budget});
  const auto least = results.row("stream_error", {best, budget});
  std::vector<double> differences;
  for (size_t t = 0; t < errors.size(); ++t) {
    const double difference = errors[t] * errors[t] - least[t] * least[t];
    if (!std::isnan(difference)) differences.push_back(difference);
  }
  if (differences.empty()) return false;
  return bootstrap_mean(differences, kSeed).low <= 0;
}

void mark_budget(const Dataset& results, int64_t budget, Verdict& found) {
  int64_t best = -1;
  for (const int64_t p : found.order) {
    const double error = summary_of(results, p, budget);
    if (found.apart[static_cast<size_t>(p)] || std::isnan(error)) continue;
    if (best < 0 || error < summary_of(results, best, budget)) best = p;
  }
  if (best < 0) return;
  const double least = summary_of(results, best, budget);
  for (const int64_t p : found.order) {
    const double error = summary_of(results, p, budget);
    if (found.apart[static_cast<size_t>(p)] || std::isnan(error)) continue;
    Mark& mark = found.marks[static_cast<size_t>(p)][static_cast<size_t>(budget)];
    if (error - least <= kEqualError * least)
      mark = Mark::best;
    else if (open_between(results, p, best, budget))
      mark = Mark::equal;
  }
}

const std::vector<std::string>& texts(const Dataset& results, const char* name) {
  return std::get<std::vector<std::string>>(results.at(name).values);
}

/// The best policy at a budget; of several with the same error the one with the shortest name, as
/// settings without effect make names longer. -1: none.
int64_t plainest_best(const Dataset& results, const Verdict& verdict, size_t budget) {
  const auto& names = texts(results, "policy");
  int64_t found = -1;
  for (const int64_t p : verdict.order) {
    if (verdict.marks[static_cast<size_t>(p)][budget] != Mark::best) continue;
    if (found < 0 ||
        names[static_cast<size_t>(p)].size() < names[static_cast<size_t>(found)].size())
      found = p;
  }
  return found;
}

/// "a at 0.1 and 0.2; b at 0.5".
std::string uses(const Dataset& results, const Verdict& verdict) {
  const auto& budgets = texts(results, "budget_label");
  std::string text;
  int64_t before = -1;
  for (size_t b = 0; b < budgets.size(); ++b) {
    const int64_t p = plainest_best(results, verdict, b);
    if (p < 0) continue;
    if (p == before)
      text += ", " + budgets[b];
    else
      text += fmt::format("{}{} at {}", text.empty() ? "" : "; ",
                          texts(results, "policy")[static_cast<size_t>(p)], budgets[b]);
    before = p;
  }
  return text;
}

/// What would tell more, at the smallest budget.
std::string what_next(const Dataset& results, const Verdict& verdict) {
  const auto& ratios = std::get<std::vector<double>>(results.at("budget").values);
  const auto b = static_cast<size_t>(std::ranges::min_element(ratios) - ratios.begin());
  const int64_t best = plainest_best(results, verdict, b);
  if (best < 0) return "";
  const std::string budget = texts(results, "budget_label")[b];
  int64_t open = 1;
  for (const auto& marks : verdict.marks) open += marks[b] == Mark::equal;
  if (open > 1)
    return fmt::format("{} policies cannot be told apart at {}: replay more traces", open, budget);
  double hindsight = std::numeric_limits<double>::infinity();
  for (const int64_t p : verdict.order)
    if (verdict.apart[static_cast<size_t>(p)] && !loses_nothing(results, p))
      hindsight = std::min(hindsight, summary_of(results, p, static_cast<int64_t>(b)));
  const double share = hindsight / summary_of(results, best, static_cast<int64_t>(b));
  const std::string why = share < 1
                              ? fmt::format(", as hindsight has only {:.2f} of its error at {}",
                                            share, budget)
                              : "";
  return fmt::format("change one setting of {} (kvsim sweep){}",
                     texts(results, "policy")[static_cast<size_t>(best)], why);
}

}  // namespace

Verdict verdict(const Dataset& results, const std::vector<bool>& looks_ahead) {
  Verdict found;
  if (!results.has("stream_error_rms") || !results.has("stream_error")) return found;
  const auto policies = static_cast<size_t>(results.size("policy"));
  found.marks.assign(policies, std::vector<Mark>(static_cast<size_t>(results.size("budget"))));
  std::vector<double> value;
  for (size_t p = 0; p < policies; ++p) {
    const auto policy = static_cast<int64_t>(p);
    found.apart.push_back((p < looks_ahead.size() && looks_ahead[p]) ||
                          loses_nothing(results, policy));
    value.push_back(log_mean(results, policy));
    found.order.push_back(policy);
  }
  std::ranges::stable_sort(found.order, [&](int64_t x, int64_t y) {
    const auto i = static_cast<size_t>(x);
    const auto j = static_cast<size_t>(y);
    return found.apart[i] != found.apart[j] ? found.apart[j] : value[i] < value[j];
  });
  parallel_for(results.size("budget"), [&](int64_t b) { mark_budget(results, b, found); });
  return found;
}

std::string advice(const Dataset& results, const Verdict& verdict) {
  if (verdict.order.empty()) return "";
  const auto ranked = std::ranges::count(verdict.apart, false);
  const std::string best = uses(results, verdict);
  if (ranked < 2 || best.empty()) return "";
  const std::string tried = what_next(results, verdict);
  return "on this text use " + best + (tried.empty() ? "" : "; next: " + tried) + "\n";
}

}  // namespace kvsim
