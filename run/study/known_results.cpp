#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "analysis/ranking.hpp"
#include "io/side_files.hpp"
#include "run/study/study.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/policy/presets.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

std::string form(VariableType type, const std::vector<std::string>& dims) {
  return fmt::format("{} over [{}]", type_text(type), fmt::join(dims, ", "));
}

void check_program(const Dataset& results, const std::string& path) {
  const AttributeValue* program = results.attribute("kvsim_version");
  if (program == nullptr || !std::holds_alternative<std::string>(*program))
    bad_data({"not a results file", path, "no attribute kvsim_version",
              "a netCDF-4 file written by kvsim"});
  const AttributeValue* version = results.attribute(kResultsVersionAttribute);
  if (version == nullptr) return;  // written before there were versions: as version 1
  const auto* number = std::get_if<int64_t>(version);
  if (number != nullptr && *number >= 1 && *number <= kResultsVersion) return;
  bad_data({"results of another version", path,
            (number != nullptr ? "version " + std::to_string(*number) : "no number") +
                ", of kvsim " + std::get<std::string>(*program),
            fmt::format("version 1 to {}", kResultsVersion),
            "a later kvsim reads it, or replay the trace again"});
}

std::string title(const Record& record) {
  return record.variant.empty() ? record.preset : record.preset + ":" + record.variant;
}

std::vector<std::string> texts(const Record& record, const std::vector<std::string>& keys) {
  std::vector<std::string> row;
  for (const std::string& key : keys) row.push_back(record.settings.text(key));
  return row;
}

/// The values of some keys, each row once, in the order of the records.
std::vector<std::vector<std::string>> distinct(const std::vector<Record>& records,
                                               const std::vector<std::string>& keys) {
  std::vector<std::vector<std::string>> rows;
  std::set<std::vector<std::string>> seen;
  for (const Record& record : records) {
    std::vector<std::string> row = texts(record, keys);
    if (seen.insert(row).second) rows.push_back(std::move(row));
  }
  return rows;
}

/// Whether a record's value of `other` says what its value of `key` is.
bool follows(const std::vector<Record>& records, const std::string& key, const std::string& other) {
  return distinct(records, {other, key}).size() == distinct(records, {other}).size();
}

/// Of the records of one preset.
ordered_json axes_of(const std::vector<Record>& records) {
  auto axes = ordered_json::array();
  std::vector<std::string> varying;
  for (const auto& [key, value] : records.at(0).settings.values())
    if (distinct(records, {key}).size() > 1) varying.push_back(key);
  const Settings original = preset_settings(*find_preset(records[0].preset, records[0].variant));
  std::set<std::string> taken;
  for (const std::string& key : varying) {
    if (taken.contains(key)) continue;
    std::vector<std::string> keys, own;
    bool decided = false;
    for (const std::string& other : varying) {
      if (!follows(records, key, other)) continue;
      if (follows(records, other, key)) {
        keys.push_back(other);
        own.push_back(original.text(other));
      } else {
        decided = true;
      }
    }
    taken.insert(keys.begin(), keys.end());
    if (!decided)
      axes.push_back({{"keys", keys}, {"values", distinct(records, keys)}, {"default", own}});
  }
  return axes;
}

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

void check_known_results(const Dataset& results, const std::string& path) {
  check_program(results, path);
  if (results.has("kl_divergence") && !results.has("layer"))
    bad_data({"losses of a closed loop stand where results of a replay are expected", path, "",
              "a results file of kvsim replay or sweep"});
  for (const char* axis : {"policy", "budget", "budget_label", "layer", "step"})
    if (!results.has(axis)) bad_data({"missing variable", path, "", axis});
  for (const VariableDeclaration& declared : declared_variables()) {
    const Variable* found = results.find(declared.name);
    if (found == nullptr) continue;
    if (found->type() == declared.type && found->dims == declared.dim_names()) continue;
    bad_data({"wrong form", path + ": " + declared.name, form(found->type(), found->dims),
              form(declared.type, declared.dim_names())});
  }
}

Dataset read_known_results(const std::string& path) {
  Dataset results = read_results(path);
  check_known_results(results, path);
  return results;
}

std::string grid_axes_json(const std::vector<Record>& records) {
  std::vector<std::pair<std::string, std::vector<Record>>> presets;
  for (const Record& record : records) {
    const auto found = std::ranges::find(presets, title(record),
                                         [](const auto& p) { return p.first; });
    if (found == presets.end())
      presets.push_back({title(record), {record}});
    else
      found->second.push_back(record);
  }
  auto json = ordered_json::object();
  for (const auto& [preset, own] : presets)
    if (ordered_json axes = axes_of(own); !axes.empty()) json[preset] = std::move(axes);
  return json.dump();
}

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
