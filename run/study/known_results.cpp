#include "run/study/known_results.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "io/results.hpp"
#include "sim/policy/presets.hpp"

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

}  // namespace kvsim
