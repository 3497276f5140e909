#include "run/fragility.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "analysis/summary.hpp"
#include "sim/core/error.hpp"

namespace kvsim {
namespace {

/// The record with the keys of `change` ("key=value") in place of those that say how rows, heads
/// and the prior work now.
std::string changed(const Record& record, const std::vector<std::string>& change) {
  const std::string canonical = record.canonical();
  std::string text;
  for (size_t begin = 0; begin <= canonical.size();) {
    const size_t end = std::min(canonical.find(',', begin), canonical.size());
    const std::string part = canonical.substr(begin, end - begin);
    begin = end + 1;
    const std::string key = part.substr(0, part.find('='));
    const auto replaced = [&](const std::string& other) {
      return other.substr(0, other.find('=')) == key;
    };
    if (key == "single_row" || std::ranges::any_of(change, replaced)) continue;
    text += (text.empty() ? "" : ",") + part;
  }
  for (const std::string& part : change) text += "," + part;
  return Record::parse(text).canonical();
}

/// Mean of means, worst and number of outliers of one policy at one budget, over layers.
std::array<double, 3> over_layers(const Dataset& results, int64_t policy, int64_t budget) {
  const auto outliers = results.row("outlier_count", {policy, budget});
  double count = 0;
  for (const double of_layer : outliers) count += of_layer;
  return {mean(results.row("retained_importance_mean", {policy, budget})),
          minimum(results.row("retained_importance_min", {policy, budget})), count};
}

Band band(const std::vector<std::array<double, 3>>& rows, size_t which) {
  std::vector<double> values;
  for (const auto& row : rows) values.push_back(row[which]);
  return {minimum(values), percentile(values, 50), maximum(values)};
}

}  // namespace

FragilityGroup fragility_group(const Record& record) {
  FragilityGroup group;
  group.base = record.canonical();
  const Settings& settings = record.settings;
  if (!settings.values().contains("queries") || !settings.is("queries", "window")) return group;
  if (!settings.values().contains("window") || settings.is_fraction("window")) return group;
  try {
    for (int64_t row = 0; row < settings.count("window"); ++row) {
      group.singles.push_back(
          changed(record, {"aggregate=single", "single_row=" + std::to_string(row)}));
    }
    group.defensive = changed(record, {"aggregate=max", "group=max", "prior=head-mean"});
  } catch (const Error&) {
    // Keys of its own aggregation mean nothing to another one: such a record has no group.
    group.singles.clear();
  }
  return group;
}

std::vector<FragilityGroup> fragility_groups(const std::vector<Record>& records) {
  std::vector<FragilityGroup> groups;
  for (const Record& record : records) {
    FragilityGroup group = fragility_group(record);
    if (!group.singles.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

std::vector<FragilityRow> fragility_rows(const Dataset& results,
                                         const std::vector<FragilityGroup>& groups) {
  const auto& policies = std::get<std::vector<std::string>>(results.at("policy").values);
  const auto& labels = std::get<std::vector<std::string>>(results.at("budget_label").values);
  const auto index = [&](const std::string& policy) {
    const auto found = std::ranges::find(policies, policy);
    if (found == policies.end()) throw std::logic_error(policy + " is not in the results");
    return found - policies.begin();
  };
  std::vector<FragilityRow> rows;
  for (const FragilityGroup& group : groups) {
    for (size_t b = 0; b < labels.size(); ++b) {
      const auto budget = static_cast<int64_t>(b);
      std::vector<std::array<double, 3>> singles;
      for (const std::string& single : group.singles)
        singles.push_back(over_layers(results, index(single), budget));
      const auto base = over_layers(results, index(group.base), budget);
      const auto defensive = over_layers(results, index(group.defensive), budget);
      rows.push_back({group.base, labels[b], band(singles, 0), band(singles, 1), band(singles, 2),
                      base[0], base[1], base[2], defensive[0], defensive[1], defensive[2]});
    }
  }
  return rows;
}

}  // namespace kvsim
