#include "run/explain/fragility.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "analysis/summary.hpp"
#include "sim/core/error.hpp"
#include "sim/stages/queries/queries.hpp"

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

using Measures = FragilityMeasures<double>;

/// Of one policy at one budget.
Measures measures(const Dataset& results, int64_t policy, int64_t budget) {
  Measures found;
  found.stream = results.has("stream_error_rms")
                     ? results.row("stream_error_rms", {policy, budget})[0]
                     : std::numeric_limits<double>::quiet_NaN();
  found.mean = mean(results.row("retained_importance_mean", {policy, budget}));
  found.min = minimum(results.row("retained_importance_min", {policy, budget}));
  found.outliers = 0;
  for (const double of_layer : results.row("outlier_count", {policy, budget}))
    found.outliers += of_layer;
  return found;
}

Band band(const std::vector<Measures>& rows, double Measures::*which) {
  std::vector<double> values;
  for (const Measures& row : rows) values.push_back(row.*which);
  return {minimum(values), percentile(values, 50), maximum(values)};
}

}  // namespace

FragilityGroup fragility_group(const Record& record) {
  FragilityGroup group;
  group.base = record.canonical();
  const Settings& settings = record.settings;
  if (!chosen<Queries>(settings).has_window() || settings.is_fraction("window")) return group;
  try {
    for (int64_t row = 0; row < settings.count("window"); ++row) {
      group.singles.push_back(
          changed(record, {"aggregate=single", "single_row=" + std::to_string(row)}));
    }
    group.max = changed(record, {"aggregate=max", "group=max"});
    group.defensive = changed(record, {"indicator=attention", "aggregate=max", "group=max",
                                       "prior=head-mean", "weight=projected-l1"});
    group.published =
        Record::parse("defensivekv:code,window=" + settings.text("window")).canonical();
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
      std::vector<Measures> singles;
      for (const std::string& single : group.singles)
        singles.push_back(measures(results, index(single), budget));
      FragilityRow& row = rows.emplace_back(
          FragilityRow{group.base,
                       labels[b],
                       {band(singles, &Measures::stream), band(singles, &Measures::mean),
                        band(singles, &Measures::min), band(singles, &Measures::outliers)},
                       {}});
      for (const auto& [name, record] : {std::pair{"as it is", &group.base},
                                         {"max over rows and heads", &group.max},
                                         {"defensive step", &group.defensive},
                                         {"defensivekv:code", &group.published}})
        row.others.emplace_back(name, measures(results, index(*record), budget));
    }
  }
  return rows;
}

}  // namespace kvsim
