#include <fmt/format.h>

#include "analysis/ranking.hpp"
#include "run/study/study.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim {
namespace {

/// Budgets for which `idle` holds, by comma; none: empty.
std::string budgets_where(const Dataset& results, const std::function<bool(int64_t)>& idle) {
  const auto& labels = results.texts("budget_label");
  std::string text;
  for (int64_t b = 0; b < std::ssize(labels); ++b)
    if (idle(b)) text += (text.empty() ? "" : ", ") + labels[b];
  return text;
}

constexpr const char* kWindowTakes = "the window (key window) takes";
constexpr const char* kSinksTake = "the first entries (key sinks) take";
constexpr const char* kBothTake = "the window and the first entries (keys window, sinks) take";

/// That share of the entries is there.
bool keeps(const Dataset& results, int64_t policy, int64_t budget, double share) {
  return results.has("realised_ratio") &&
         results.row("realised_ratio", {policy, budget})[0] == share;
}

/// NaN is unknown, and no zero.
bool all_zero(const Dataset& results, const char* variable, int64_t policy, int64_t budget) {
  if (!results.has(variable)) return false;
  const auto values = results.row(variable, {policy, budget});
  return std::ranges::all_of(values, [](double value) { return value == 0; });
}

/// All scores of all heads are equal, as the variable `unranked` says.
bool all_alike(const Dataset& results, int64_t policy, int64_t budget) {
  return results.has("unranked") && results.row<uint8_t>("unranked", {policy, budget})[0] ==
                                        static_cast<uint8_t>(Unranked::scores_all_equal);
}

/// Names what is kept whatever its score and takes all places of every head that loses entries.
std::string filled_by(const Dataset& results, const Record& record, int64_t policy,
                      int64_t budget) {
  const auto& queries = chosen<Queries>(record.settings);
  const auto n = results.attribute_or<int64_t>("prompt_len", 0);
  if (n == 0 || !results.has("kept")) return "";
  const auto& labels = results.texts("budget_label");
  const Budget asked = record.own_budgets.empty() ? Budget::parse(labels[budget])
                                                  : record.own_budgets[budget];
  const int64_t entries = budget_entries(record.settings, asked, n);
  const int64_t window = queries.has_window() ? queries.window(record.settings, entries, n) : 0;
  const int64_t sinks = record.settings.count(keys::sinks);
  int64_t most = 0;
  for (int64_t layer = 0; layer < results.size("layer"); ++layer)
    for (const double kept : results.row("kept", {policy, budget, layer}))
      if (kept < static_cast<double>(n)) most = std::max(most, static_cast<int64_t>(kept));
  if (most == 0 || most > window + sinks) return "";
  if (most <= window) return kWindowTakes;
  return most <= sinks ? kSinksTake : kBothTake;
}

/// Layers of skip_layers that the model does not have, joined as in the record.
std::string missing_layers(const Dataset& results, const Settings& settings) {
  const auto count = results.attribute_or<int64_t>("num_layers", 0);
  if (count == 0) return "";
  std::string missing;
  for (const std::string& one : settings.list(keys::skip_layers)) {
    const int64_t layer = std::stoi(one);
    if (layer < -count || layer >= count) missing += (missing.empty() ? "" : "+") + one;
  }
  if (missing.empty()) return "";
  return fmt::format("skip_layers={}, the model has layers 0 to {}", missing, count - 1);
}

}  // namespace

std::string idle_settings(const Dataset& results, const std::vector<Record>& records) {
  const auto& policies = results.texts("policy");
  std::string text;
  for (size_t p = 0; p < std::min(policies.size(), records.size()); ++p) {
    const auto policy = static_cast<int64_t>(p);
    const Settings& settings = records[p].settings;
    const auto say = [&](const std::string& budgets, const std::string& why) {
      if (!budgets.empty()) text += fmt::format("{} at {}: {}\n", policies[p], budgets, why);
    };
    if (const std::string missing = missing_layers(results, settings); !missing.empty())
      say(budgets_where(results, [](int64_t) { return true; }), missing);
    const auto& schedule = chosen<Schedule>(settings);
    if (!chosen<Allocate>(settings).keeps_everything() && !schedule.decodes() && schedule.evicts())
      say(budgets_where(results, [&](int64_t b) { return keeps(results, policy, b, 1.0); }),
          "nothing is evicted, the whole prompt is kept");
    if (!schedule.decodes())
      for (const char* what : {kWindowTakes, kSinksTake, kBothTake})
        say(budgets_where(
                results,
                [&](int64_t b) { return filled_by(results, records[p], policy, b) == what; }),
            fmt::format("no score chooses, {} the whole budget", what));
    say(budgets_where(results, [&](int64_t b) { return all_alike(results, policy, b); }),
        "no score chooses, all are equal");
    say(budgets_where(results, [&](int64_t b) { return keeps(results, policy, b, 0.0); }),
        "no entry of the prompt is kept");
    const KindInfo& merge = chosen<Merge>(settings).info();
    if (contains(merge.keys, "merge_threshold"))
      say(budgets_where(
              results,
              [&](int64_t b) {
        return !keeps(results, policy, b, 1.0) && all_zero(results, "merge_count", policy, b);
              }),
          "merge=" + merge.name + " merges nothing, no entry is as near to another as " +
              settings.text(keys::merge_threshold) + " (key merge_threshold)");
    if (quantizer(settings).changes_entries())
      say(budgets_where(
              results,
              [&](int64_t b) { return all_zero(results, "quantization_error_mean", policy, b); }),
          "quantize=" + settings.text("quantize") +
              " rounds no entry (those of quant_residual stay as they are)");
  }
  return text;
}

}  // namespace kvsim
