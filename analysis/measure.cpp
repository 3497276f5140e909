#include "analysis/measure.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "sim/replay/compression.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

std::vector<const DeclareMeasure*>& announced() {
  static std::vector<const DeclareMeasure*> declarations;
  return declarations;
}

template <class Test>
bool any_record(const RunShape& run, Test test) {
  return std::ranges::any_of(run.options.records,
                             [&](const Record& record) { return test(record.settings); });
}

/// of(item) of each.
template <class Items, class Of>
auto each(const Items& items, Of of) {
  std::vector<std::remove_cvref_t<std::invoke_result_t<Of, decltype(*items.begin())>>> values;
  for (const auto& item : items) values.push_back(std::invoke(of, item));
  return values;
}

VariableValues policies(const RunShape& run) {
  return each(run.options.records, &Record::canonical);
}
VariableValues budgets(const RunShape& run) {
  return each(run.options.budgets, [&](const Budget& budget) {
    return budget_ratio(budget, run.options.records, run.info.prompt_len);
  });
}
VariableValues budget_labels(const RunShape& run) {
  return each(run.options.budgets, &Budget::label);
}
VariableValues layers(const RunShape& run) {
  return std::vector<int32_t>(run.options.layers.begin(), run.options.layers.end());
}
VariableValues heads(const RunShape& run) { return ascending<int32_t>(run.info.num_query_heads); }
VariableValues kv_heads(const RunShape& run) { return ascending<int32_t>(run.info.num_kv_heads); }
VariableValues steps(const RunShape& run) {
  const auto later = run.info.later_queries();
  return std::vector<int64_t>(later.begin(), later.end());
}
VariableValues positions(const RunShape& run) { return ascending<int64_t>(run.info.prompt_len); }
VariableValues spans(const RunShape& run) { return each(run.spans, &SpanTokens::name); }
/// A complement of the whole prompt has no tokens: it begins and ends at 0.
VariableValues span_begins(const RunShape& run) {
  return each(run.spans, [](const SpanTokens& span) {
    return span.ranges.empty() ? 0 : span.ranges.front().begin;
  });
}
VariableValues span_ends(const RunShape& run) {
  return each(run.spans, [](const SpanTokens& span) {
    return span.ranges.empty() ? 0 : span.ranges.back().end;
  });
}

const DeclareMeasure axes(
    {.name = "axes", .place = 0, .when = &kAlways},
    {{"policy", "policy", "1", "policy record",
      "canonical text of the record: preset, variant, and the keys that differ from the preset",
      VariableType::text, Known{policies}},
     {"budget", "budget", "1", "budget as a share of the prompt",
      "the typed ratio, or min(c, n)/n for a count c; c/n where a policy of the run has "
      "schedule=decode",
      Known{budgets}},
     {"layer", "layer", "1", "layer of the model", "the model's own index", VariableType::int32,
      Known{layers}},
     {"head", "head", "1", "query head", "0..Hq-1", VariableType::int32, Known{heads}},
     {"kv_head", "kv_head", "1", "KV head", "0..Hkv-1", VariableType::int32, Known{kv_heads}},
     {"step", "step", "1", "position of the query",
      "absolute positions >= n with a stored query, ascending", VariableType::int64, Known{steps}},
     {"span", "span", "1", "labelled part of the prompt",
      "span names of the trace; `!NAME` is every prompt token outside NAME (--span-complement)",
      VariableType::text, Needs{&kSpans}, Known{spans}},
     {"span_begin", "span", "1", "first token of a span", "position of its first token",
      VariableType::int64, Needs{&kSpans}, Known{span_begins}},
     {"span_end", "span", "1", "end of a span", "position after its last token",
      VariableType::int64, Needs{&kSpans}, Known{span_ends}},
     {"position", "position", "1", "position of a prompt entry", "0..n-1", VariableType::int64,
      Needs{&kSaveKeep}, Known{positions}},
     {"budget_label", "budget", "1", "budget as a text",
      "`0.2` (.2, 0.20 and 20% are the same), or a count: `512`", VariableType::text,
      Known{budget_labels}}});

bool stands_over(const VariableDeclaration& variable, std::string_view axis) {
  if (variable.is_coordinate()) return false;
  for (std::string_view dims = variable.dims; !dims.empty();) {
    const std::string_view name = dims.substr(0, dims.find(' '));
    if (name == axis) return true;
    dims.remove_prefix(std::min(name.size() + 1, dims.size()));
  }
  return false;
}

/// A coordinate that is not of every run belongs to each measure that has a variable over it.
std::vector<std::string> measures_over(const VariableDeclaration& axis) {
  std::vector<std::string> names;
  for (const DeclareMeasure* measure : declared_measures())
    for (const VariableDeclaration& variable : measure->variables) {
      if (!stands_over(variable, axis.name)) continue;
      for (const std::string& name : variable.measures)
        if (!std::ranges::count(names, name)) names.push_back(name);
    }
  return names;
}

std::vector<VariableDeclaration> all_variables() {
  std::vector<VariableDeclaration> all;
  for (const bool known : {true, false})
    for (const DeclareMeasure* measure : declared_measures())
      for (const VariableDeclaration& declaration : measure->variables) {
        if ((declaration.known != nullptr) != known) continue;
        all.push_back(declaration);
        if (known && declaration.when == nullptr) all.back().measures = measures_over(declaration);
      }
  return all;
}

std::string occasion_text(const VariableDeclaration& variable) {
  std::vector<std::string> parts;
  for (const Condition* need : variable.needs) parts.emplace_back(need->text);
  if (variable.when == &kAlways && !parts.empty()) return fmt::format("{}", fmt::join(parts, "; "));
  if (variable.when != nullptr) parts.emplace_back(variable.when->text);
  if (variable.when == &kAlways) return parts.back();
  std::vector<std::string> names = variable.measures;
  if (names.empty()) names = {variable.name};
  parts.push_back(fmt::format("{}`--metric {}`", variable.when != nullptr ? "or " : "",
                              fmt::join(names, "` or `")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

VariableValues undefined_values(VariableType type, size_t count) {
  switch (type) {
    case VariableType::float64: return std::vector<double>(count, kUndefined);
    case VariableType::int32: return std::vector<int32_t>(count, 0);
    case VariableType::int64: return std::vector<int64_t>(count, 0);
    case VariableType::uint8: return std::vector<uint8_t>(count, 255);
    case VariableType::text: return std::vector<std::string>(count);
  }
  throw std::logic_error("unknown type of a variable");
}

}  // namespace

const Condition kAlways{"always", [](const RunShape&) { return true; }};
const Condition kResidualNorm{"the trace has `residual_norm`",
                              [](const RunShape& run) { return run.info.has_residual_norm; }};
const Condition kSpans{"the trace has spans",
                       [](const RunShape& run) { return !run.spans.empty(); }};
const Condition kPerHead{"`--per-head`", [](const RunShape& run) { return run.options.per_head; }};
const Condition kSaveKeep{"`--save-keep`",
                          [](const RunShape& run) { return run.options.save_keep; }};
const Condition kQueryHeads{"a policy has `granularity=query`",
                            [](const RunShape& run) {
  return any_record(run, [](const Settings& s) { return per_query_head(s); });
                            }};
const Condition kQuantizes{"a policy quantises",
                           [](const RunShape& run) {
  return any_record(run, [](const Settings& s) { return quantizer(s).changes_entries(); });
                           }};
const Condition kMerges{"a policy merges", [](const RunShape& run) {
                          return any_record(run, [](const Settings& s) { return merges(s); });
                        }};

std::vector<std::string> VariableDeclaration::dim_names() const {
  std::istringstream words(dims);
  return {std::istream_iterator<std::string>(words), {}};
}

std::map<int, size_t> MeasuredLayer::outcomes_of(const Record& record) const {
  const std::string canonical = record.canonical();
  const auto found = std::ranges::find(records, canonical, &Record::canonical);
  if (found == records.end()) throw std::logic_error("not replayed: " + canonical);
  std::map<int, size_t> outcomes;
  for (size_t o = 0; o < replay.count(); ++o)
    for (const ReplayCell cell : replay.outcome(o).cells)
      if (cell.record == found - records.begin()) outcomes[cell.budget] = o;
  return outcomes;
}

std::vector<double> MeasuredLayer::stream_norms() const {
  const auto later = std::span(work.trace().residual_norm).subspan(work.info().first_step());
  return {later.begin(), later.end()};
}

bool MeasureResults::has(const char* variable) const {
  static const auto names = [] {
    std::set<std::string_view> all;
    for (const DeclareMeasure* measure : declared_measures())
      for (const VariableDeclaration& one : measure->variables) all.insert(one.name);
    return all;
  }();
  if (!names.contains(variable))
    throw std::logic_error("no measure declares a variable " + std::string(variable));
  return dataset_.has(variable);
}

DeclareMeasure::DeclareMeasure(MeasureInfo about, std::vector<VariableDeclaration> declared,
                               Make maker)
    : info(about), make(maker), variables(std::move(declared)) {
  for (VariableDeclaration& variable : variables) {
    if (info.whole && variable.known == nullptr) variable.measures = {info.name};
    if (info.when != nullptr) variable.when = info.when;
  }
  announced().push_back(this);
}

const std::vector<const DeclareMeasure*>& declared_measures() {
  static const auto by_place = [] {
    std::ranges::sort(announced(), {}, [](const DeclareMeasure* measure) {
      return std::pair(measure->info.place, std::string(measure->info.name));
    });
    return announced();
  }();
  return by_place;
}

std::vector<double> over_heads(const Table<double>& heads) {
  std::vector<double> sum(heads.columns(), 0.0);
  for (int64_t h = 0; h < heads.rows(); ++h)
    std::ranges::transform(sum, heads.row(h), sum.begin(), std::plus<>());
  return sum;
}

const std::vector<VariableDeclaration>& declared_variables() {
  static const std::vector<VariableDeclaration> all = all_variables();
  return all;
}

const VariableDeclaration& declared(std::string_view name) {
  for (const VariableDeclaration& declaration : declared_variables())
    if (name == declaration.name) return declaration;
  throw std::logic_error("no variable is declared as " + std::string(name));
}

std::vector<std::string> metrics_on_request() {
  std::vector<std::string> names;
  for (const VariableDeclaration& declaration : declared_variables()) {
    if (declaration.when == &kAlways || declaration.is_coordinate()) continue;
    std::vector<std::string> own = declaration.measures;
    if (own.empty()) own = {declaration.name};
    for (std::string& name : own)
      if (!contains(names, name)) names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> known_metrics() {
  std::vector<std::string> names = metrics_on_request();
  for (const VariableDeclaration& declaration : declared_variables())
    if (!std::ranges::count(names, declaration.name)) names.push_back(declaration.name);
  return names;
}

std::set<std::string> variables_of(const std::set<std::string>& metrics) {
  std::set<std::string> measures = metrics;
  for (const VariableDeclaration& declaration : declared_variables())
    if (metrics.contains(declaration.name))
      for (const std::string& measure : declaration.measures) measures.insert(measure);
  std::set<std::string> names;
  for (const VariableDeclaration& declaration : declared_variables()) {
    const auto wanted = [&](const std::string& measure) { return measures.contains(measure); };
    if (metrics.contains(declaration.name) || std::ranges::any_of(declaration.measures, wanted))
      names.insert(declaration.name);
  }
  return names;
}

bool is_written(const VariableDeclaration& variable, const RunShape& run) {
  const auto holds = [&](const Condition* condition) { return condition->holds(run); };
  if (!std::ranges::all_of(variable.needs, holds)) return false;
  if (variable.when != nullptr && holds(variable.when)) return true;
  if (!variable.is_coordinate()) return run.options.metrics.contains(variable.name);
  return std::ranges::any_of(declared_variables(), [&](const VariableDeclaration& other) {
    return stands_over(other, variable.name) && is_written(other, run);
  });
}

std::set<std::string> variables_brought(const RunShape& run) {
  std::set<std::string> names;
  for (const VariableDeclaration& variable : declared_variables())
    if (variable.when != nullptr && variable.when != &kAlways && variable.when->holds(run))
      names.insert(variable.name);
  return names;
}

const char* type_text(VariableType type) {
  static constexpr const char* kNames[] = {"float64", "int32", "int64", "uint8", "string"};
  return kNames[static_cast<size_t>(type)];
}

Variable make_variable(const VariableDeclaration& declaration, const Dataset& dataset) {
  Variable variable;
  variable.name = declaration.name;
  variable.dims = declaration.dim_names();
  variable.units = declaration.units;
  variable.long_name = declaration.long_name;
  variable.flags = declaration.flags;
  variable.values = undefined_values(declaration.type, dataset.count(variable.dims));
  return variable;
}

std::string variables_json() {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const VariableDeclaration& variable : declared_variables()) {
    nlohmann::ordered_json one = {{"name", variable.name},
                                  {"dimensions", variable.dim_names()},
                                  {"type", type_text(variable.type)},
                                  {"units", variable.units},
                                  {"long_name", variable.long_name},
                                  {"definition", variable.definition},
                                  {"written_when", occasion_text(variable)},
                                  {"metrics", variable.measures},
                                  {"file", "results"}};
    for (const FlagMeaning& flag : variable.flags) one["flags"][flag.meaning] = flag.value;
    all.push_back(std::move(one));
  }
  return all.dump(2);
}

std::string variables_markdown() {
  std::string text =
      "## 6. Variables\n\n"
      "Generated from the declarations in `analysis/`; after a change there, run\n"
      "`KVSIM_UPDATE_DOCS=1 kvsim_tests \"[docs]\"`. Undefined values are NaN (255 in `uint8`).\n"
      "n is the number of prompt entries, t a later step, A attention of the full cache, z a "
      "head's\n"
      "output before W_O (W), z^ that of the compressed cache.\n\n"
      "| variable | dimensions | type | unit | meaning | written when |\n"
      "|---|---|---|---|---|---|\n";
  for (const VariableDeclaration& variable : declared_variables())
    text += fmt::format("| `{}` | {} | {} | {} | {}: {} | {} |\n", variable.name,
                        fmt::join(variable.dim_names(), ", "), type_text(variable.type),
                        variable.units, variable.long_name, variable.definition,
                        occasion_text(variable));
  return text;
}

}  // namespace kvsim
