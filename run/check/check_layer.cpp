#include "run/check/check_layer.hpp"

#include "run/study/study.hpp"
#include "run/trace/attention_reference.hpp"

namespace kvsim {
namespace {

std::vector<double> row_of(const Tensor& tensor, int64_t a, int64_t b) {
  std::vector<float> row(tensor.dim(2));
  tensor.read(a, b, b + 1, row.data());
  return {row.begin(), row.end()};
}

double share(double part, double whole) { return whole == 0 ? 1 : part / whole; }

double norm(const std::vector<double>& x, bool squares) {
  double sum = 0;
  for (const double one : x) sum += squares ? one * one : std::fabs(one);
  return squares ? std::sqrt(sum) : sum;
}

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
  const auto& layers = results.values<int32_t>("layer");
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
    if (!results.has("output_error") || !std::isnan(results.row("output_error", {0, 0, layer})[t]))
      usable.push_back(t);
  std::vector<int64_t> some;
  const auto count = std::min(kSteps, std::ssize(usable));
  for (int64_t k = 0; k < count; ++k) some.push_back(usable[k * std::ssize(usable) / count]);
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
  const auto& names = results.texts("policy");
  for (int64_t p = 0; p < results.size("policy"); ++p) {
    const std::string& name = names[p];
    if (!only_drops(Record::parse(name))) {
      result.left_out.push_back(name);
      continue;
    }
    for (int64_t b = 0; b < results.size("budget"); ++b) {
      const std::vector<PlainMeasures> right = plain.measure(sets_of(results, info, p, b, place));
      const auto add = [&](const char* variable, double PlainMeasures::*of) {
        if (!results.has(variable)) return;
        const auto row = results.row(variable, {p, b, place});
        for (size_t k = 0; k < steps.size(); ++k) {
          theirs[variable].push_back(right[k].*of);
          ours[variable].push_back(row[steps[k]]);
        }
      };
      add("output_error", &PlainMeasures::output_error);
      if (options.scope != Scope::prompt) continue;  // shares of other entries
      add("retained_attention", &PlainMeasures::retained_attention);
      add("retained_importance", &PlainMeasures::retained_importance);
    }
  }
  result.plain = compare(ours, theirs);
}

}  // namespace

PlainLayer::PlainLayer(const LayerTrace& layer, std::vector<int64_t> rows, bool squares)
    : layer_(layer), rows_(std::move(rows)), squares_(squares),
      heads_(layer.info->num_query_heads) {
  parallel_for(std::ssize(heads_), [this](int64_t head) { prepare(static_cast<int>(head)); });
}

void PlainLayer::prepare(int head) {
  Head& own = heads_[head];
  for (const int64_t row : rows_) own.attention.push_back(attention_row(layer_, head, row));
  for (int64_t i = 0; i < layer_.info->prompt_len; ++i) {
    const std::vector<double> value = row_of(layer_.v, head / layer_.info->group_size(), i);
    std::vector<double> projected(layer_.info->hidden_size, 0.0);
    for (int64_t k = 0; k < std::ssize(value); ++k) {
      const std::vector<double> row = row_of(layer_.wo, head, k);
      for (size_t c = 0; c < row.size(); ++c) projected[c] += value[k] * row[c];
    }
    own.weight.push_back(norm(projected, squares_));
  }
}

PlainMeasures PlainLayer::of_row(const PlainSets& kept, size_t r) const {
  const auto n = static_cast<size_t>(layer_.info->prompt_len);
  double attended = 0, attended_kept = 0, important = 0, important_kept = 0;
  std::vector<double> outputs, moved_outputs;  // [Hq][dv]
  for (int64_t h = 0; h < std::ssize(heads_); ++h) {
    const std::vector<double>& full = heads_[h].attention[r];
    std::vector<double> left = full;
    double dropped = 0;
    for (size_t i = 0; i < n; ++i) {
      const double importance = full[i] * heads_[h].weight[i];
      attended += full[i];
      important += importance;
      if (kept[h][i]) {
        attended_kept += full[i];
        important_kept += importance;
      } else {
        dropped += full[i];
        left[i] = 0;
      }
    }
    for (double& weight : left) weight /= 1 - dropped;
    const std::vector<double> z = weighted_values(layer_, h, full);
    const std::vector<double> moved = weighted_values(layer_, h, left);
    outputs.insert(outputs.end(), z.begin(), z.end());
    moved_outputs.insert(moved_outputs.end(), moved.begin(), moved.end());
  }
  const std::vector<double> whole = added_to_stream(layer_, rows_[r], outputs);
  std::vector<double> changed = added_to_stream(layer_, rows_[r], moved_outputs);
  for (size_t c = 0; c < changed.size(); ++c) changed[c] -= whole[c];
  const double error = norm(changed, true), output = norm(whole, true);
  return {share(attended_kept, attended), share(important_kept, important),
          error == 0    ? 0
          : output == 0 ? kUndefined
                        : error / output};
}

std::vector<PlainMeasures> PlainLayer::measure(const PlainSets& kept) const {
  std::vector<PlainMeasures> rows(rows_.size());
  parallel_for(std::ssize(rows), [&](int64_t r) { rows[r] = of_row(kept, r); });
  return rows;
}

LayerCheckResult check_run(const TraceReader& reader, const StudyOptions& options,
                           const Dataset& results, int layer, Backend& backend, Backend& other) {
  StudyOptions again = options;  // all layers: a record may divide its budget over them
  again.save_keep = true;
  const auto run = [&](Backend& with) { return Study(reader, again).run(with); };
  LayerCheckResult result;
  const Dataset same = run(backend);
  for (const CheckedVariable& variable : compare(values_of(results, layer), values_of(same, layer)))
    if (variable.difference != 0)
      throw Error(Fault::verification,
                  {"the same layer twice gives other values", reader.info().path,
                   variable.name + " of layer " + std::to_string(layer)});
  check_plain(reader, again, same, layer, result);
  const Dataset elsewhere = run(other);
  compare_sets(same, elsewhere, layer, result);
  result.other = compare(values_of(same, layer), values_of(elsewhere, layer));
  return result;
}

}  // namespace kvsim
