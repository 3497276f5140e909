#include "run/study/grid_axes.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "sim/policy/presets.hpp"

namespace kvsim {
namespace {

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

}  // namespace

std::vector<GridAxis> grid_axes(const std::vector<Record>& records) {
  std::vector<std::string> varying;
  for (const auto& [key, value] : records.at(0).settings.values()) {
    if (distinct(records, {key}).size() > 1) varying.push_back(key);
  }
  const Settings original = preset_settings(*find_preset(records[0].preset, records[0].variant));
  std::set<std::string> taken;
  std::vector<GridAxis> axes;
  for (const std::string& key : varying) {
    if (taken.contains(key)) continue;
    GridAxis axis;
    bool decided = false;
    for (const std::string& other : varying) {
      if (!follows(records, key, other)) continue;
      if (follows(records, other, key)) {
        axis.keys.push_back(other);
        axis.original.push_back(original.text(other));
      } else {
        decided = true;
      }
    }
    taken.insert(axis.keys.begin(), axis.keys.end());
    axis.values = distinct(records, axis.keys);
    if (!decided) axes.push_back(std::move(axis));
  }
  return axes;
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
  auto json = nlohmann::ordered_json::object();
  for (const auto& [preset, own] : presets) {
    for (const GridAxis& axis : grid_axes(own)) {
      json[preset].push_back(
          {{"keys", axis.keys}, {"values", axis.values}, {"default", axis.original}});
    }
  }
  return json.dump();
}

}  // namespace kvsim
