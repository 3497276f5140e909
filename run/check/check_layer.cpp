#include "run/check/check_layer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "run/check/plain_layer.hpp"
#include "run/study/study.hpp"
#include "sim/core/error.hpp"

namespace kvsim {
namespace {

constexpr int64_t kSteps = 16;
constexpr const char* kMasks[] = {"kept_mask", "kept_mask_query"};

/// Conditions under which a record's kept sets are all that it does.
constexpr std::pair<const char*, const char*> kPlainStages[] = {
    {"schedule", "prefill"}, {"merge", "drop"}, {"quantize", "none"}, {"positions", "absolute"}};

bool only_drops(const Record& record) {
  return std::ranges::all_of(kPlainStages, [&](const auto& stage) {
    return record.settings.is(stage.first, stage.second);
  });
}

int64_t place_of(const Dataset& results, int layer) {
  const auto& layers = std::get<std::vector<int32_t>>(results.at("layer").values);
  return std::ranges::find(layers, layer) - layers.begin();
}

/// Relative where values are above 1; 0 where both are undefined.
double difference(double a, double b) {
  if (std::isnan(a) && std::isnan(b)) return 0;
  const double found = std::fabs(a - b) / std::max({1.0, std::fabs(a), std::fabs(b)});
  return std::isnan(found) ? std::numeric_limits<double>::infinity() : found;
}

/// Real variables over policy, budget and layer, of this layer.
std::map<std::string, std::vector<double>> values_of(const Dataset& results, int layer) {
  std::map<std::string, std::vector<double>> found;
  const int64_t place = place_of(results, layer);
  for (const Variable& variable : results.variables()) {
    if (variable.type() != VariableType::float64 || variable.dims.size() < 3 ||
        variable.dims[0] != "policy" || variable.dims[1] != "budget" || variable.dims[2] != "layer")
      continue;
    for (int64_t p = 0; p < results.size("policy"); ++p)
      for (int64_t b = 0; b < results.size("budget"); ++b)
        for (const double value : results.row(variable.name, {p, b, place}))
          found[variable.name].push_back(value);
  }
  return found;
}

std::vector<CheckedVariable> compare(const std::map<std::string, std::vector<double>>& some,
                                     const std::map<std::string, std::vector<double>>& others) {
  std::vector<CheckedVariable> checked;
  for (const auto& [name, values] : some) {
    const auto found = others.find(name);
    if (found == others.end() || found->second.size() != values.size()) continue;
    CheckedVariable one{name, 0, std::ssize(values)};
    for (size_t i = 0; i < values.size(); ++i)
      one.difference = std::max(one.difference, difference(values[i], found->second[i]));
    checked.push_back(one);
  }
  return checked;
}

/// How many marks of the masks differ, and how many there are.
void compare_sets(const Dataset& a, const Dataset& b, int layer, LayerCheckResult& result) {
  for (const char* name : kMasks) {
    if (!a.has(name) || !b.has(name)) continue;
    for (int64_t p = 0; p < a.size("policy"); ++p)
      for (int64_t c = 0; c < a.size("budget"); ++c) {
        const auto x = a.row<uint8_t>(name, {p, c, place_of(a, layer)});
        const auto y = b.row<uint8_t>(name, {p, c, place_of(b, layer)});
        for (size_t i = 0; i < x.size(); ++i) {
          result.kept += x[i] == 1 ? 1 : 0;
          result.moved += x[i] == 1 && y[i] != 1 ? 1 : 0;
        }
      }
  }
}

/// [Hq][n] of one cell.
PlainSets sets_of(const Dataset& results, const TraceInfo& info, int64_t p, int64_t b, int64_t l) {
  constexpr uint8_t kNoOwner = 255;
  const auto heads = static_cast<size_t>(info.num_query_heads);
  const auto n = static_cast<size_t>(info.prompt_len);
  PlainSets sets(heads, std::vector<bool>(n));
  for (const char* name : kMasks) {
    if (!results.has(name)) continue;
    const auto mask = results.row<uint8_t>(name, {p, b, l});
    if (mask.empty() || mask[0] == kNoOwner) continue;
    const size_t owners = mask.size() / n;
    for (size_t h = 0; h < heads; ++h)
      for (size_t i = 0; i < n; ++i) sets[h][i] = mask[h * owners / heads * n + i] == 1;
  }
  return sets;
}

/// Later steps that are looked at, as places among the steps: evenly spaced, of those whose errors
/// are known where there are such.
std::vector<int64_t> some_steps(const Dataset& results, int64_t layer) {
  std::vector<int64_t> usable;
  for (int64_t t = 0; t < results.size("step"); ++t)
    if (!results.has("output_error") ||
        !std::isnan(results.row("output_error", {0, 0, layer})[static_cast<size_t>(t)]))
      usable.push_back(t);
  std::vector<int64_t> some;
  const auto count = std::min(kSteps, std::ssize(usable));
  for (int64_t k = 0; k < count; ++k)
    some.push_back(usable[static_cast<size_t>(k * std::ssize(usable) / count)]);
  return some;
}

void check_plain(const TraceReader& reader, const StudyOptions& options, const Dataset& results,
                 int number, LayerCheckResult& result) {
  const LayerTrace layer = reader.read_layer(number);
  const TraceInfo& info = reader.info();
  const int64_t place = place_of(results, number);
  const std::vector<int64_t> steps = some_steps(results, place);
  const int64_t first = std::ssize(info.query_position) - results.size("step");
  std::vector<int64_t> rows;
  for (const int64_t step : steps) rows.push_back(first + step);
  const PlainLayer plain(layer, rows, options.importance == Norm::l2);
  std::map<std::string, std::vector<double>> ours, theirs;
  const auto& names = std::get<std::vector<std::string>>(results.at("policy").values);
  for (int64_t p = 0; p < results.size("policy"); ++p) {
    const std::string& name = names[static_cast<size_t>(p)];
    if (!only_drops(Record::parse(name))) {
      result.left_out.push_back(name);
      continue;
    }
    for (int64_t b = 0; b < results.size("budget"); ++b) {
      const PlainMeasures right = plain.measure(sets_of(results, info, p, b, place));
      const auto add = [&](const char* variable, const std::vector<double>& values) {
        if (!results.has(variable)) return;
        const auto row = results.row(variable, {p, b, place});
        for (size_t k = 0; k < steps.size(); ++k) {
          theirs[variable].push_back(values[k]);
          ours[variable].push_back(row[static_cast<size_t>(steps[k])]);
        }
      };
      add("output_error", right.output_error);
      if (options.scope != Scope::prompt) continue;  // shares of other entries
      add("retained_attention", right.retained_attention);
      add("retained_importance", right.retained_importance);
    }
  }
  result.plain = compare(ours, theirs);
}

}  // namespace

LayerCheckResult check_run(const TraceReader& reader, const StudyOptions& options,
                           const Dataset& results, int layer, Backend& backend, Backend& other) {
  StudyOptions again = options;  // all layers: a record may divide its budget over them
  again.save_keep = true;
  const auto run = [&](Backend& with) { return Study(reader, again).run(with); };
  LayerCheckResult result;
  result.layer = layer;
  const Dataset same = run(backend);
  for (const CheckedVariable& variable : compare(values_of(results, layer), values_of(same, layer)))
    if (variable.difference != 0)
      throw Error(Fault::verification,
                  {.what = "the same layer twice gives other values",
                   .where = reader.info().path,
                   .found = variable.name + " of layer " + std::to_string(layer)});
  check_plain(reader, again, same, layer, result);
  const Dataset elsewhere = run(other);
  compare_sets(same, elsewhere, layer, result);
  result.other = compare(values_of(same, layer), values_of(elsewhere, layer));
  return result;
}

}  // namespace kvsim
