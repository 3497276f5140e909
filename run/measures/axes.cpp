// The dimensions of every results file, and what describes them.
#include <numeric>

#include "run/measures/conditions.hpp"
#include "run/measures/measure.hpp"

namespace kvsim {
namespace {

template <class T>
std::vector<T> counting(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), T{0});
  return values;
}

VariableValues policies(const RunShape& run) {
  std::vector<std::string> texts;
  for (const Record& record : run.options.records) texts.push_back(record.canonical());
  return texts;
}
VariableValues budgets(const RunShape& run) {
  std::vector<double> ratios;
  for (const Budget& budget : run.options.budgets)
    ratios.push_back(budget_ratio(budget, run.options.records, run.info.prompt_len));
  return ratios;
}
VariableValues budget_labels(const RunShape& run) {
  std::vector<std::string> texts;
  for (const Budget& budget : run.options.budgets) texts.push_back(budget.label);
  return texts;
}
VariableValues layers(const RunShape& run) {
  return std::vector<int32_t>(run.options.layers.begin(), run.options.layers.end());
}
VariableValues heads(const RunShape& run) { return counting<int32_t>(run.info.num_query_heads); }
VariableValues kv_heads(const RunShape& run) { return counting<int32_t>(run.info.num_kv_heads); }
VariableValues steps(const RunShape& run) {
  return std::vector<int64_t>(run.info.query_position.begin() + run.info.first_step(),
                              run.info.query_position.end());
}
VariableValues positions(const RunShape& run) { return counting<int64_t>(run.info.prompt_len); }
VariableValues spans(const RunShape& run) {
  std::vector<std::string> names;
  for (const SpanTokens& span : run.spans) names.push_back(span.name);
  return names;
}
/// A complement of the whole prompt has no tokens: it begins and ends at 0.
VariableValues span_begins(const RunShape& run) {
  std::vector<int64_t> values;
  for (const SpanTokens& span : run.spans)
    values.push_back(span.ranges.empty() ? 0 : span.ranges.front().begin);
  return values;
}
VariableValues span_ends(const RunShape& run) {
  std::vector<int64_t> values;
  for (const SpanTokens& span : run.spans)
    values.push_back(span.ranges.empty() ? 0 : span.ranges.back().end);
  return values;
}

DeclareMeasure axes({.name = "axes", .place = 0, .when = &kAlways});
const MeasureAxis all[] = {
    {axes,
     {.name = "policy",
      .type = VariableType::text,
      .long_name = "policy record",
      .definition = "canonical text of the record: preset, variant, and the keys that differ from "
                    "the preset"},
     policies},
    {axes,
     {.name = "budget",
      .long_name = "budget as a share of the prompt",
      .definition = "the typed ratio, or min(c, n)/n for a count c; c/n where a "
                    "policy of the run has schedule=decode"},
     budgets},
    {axes,
     {.name = "layer",
      .type = VariableType::int32,
      .long_name = "layer of the model",
      .definition = "the model's own index"},
     layers},
    {axes,
     {.name = "head",
      .type = VariableType::int32,
      .long_name = "query head",
      .definition = "0..Hq-1"},
     heads},
    {axes,
     {.name = "kv_head",
      .type = VariableType::int32,
      .long_name = "KV head",
      .definition = "0..Hkv-1"},
     kv_heads},
    {axes,
     {.name = "step",
      .type = VariableType::int64,
      .long_name = "position of the query",
      .definition = "absolute positions >= n with a stored query, ascending"},
     steps},
    {axes,
     {.name = "span",
      .type = VariableType::text,
      .long_name = "labelled part of the prompt",
      .definition = "span names of the trace; `!NAME` is every prompt token outside NAME "
                    "(--span-complement)",
      .needs = {&kSpans}},
     spans},
    {axes,
     {.name = "span_begin",
      .dims = "span",
      .type = VariableType::int64,
      .long_name = "first token of a span",
      .definition = "position of its first token",
      .needs = {&kSpans}},
     span_begins},
    {axes,
     {.name = "span_end",
      .dims = "span",
      .type = VariableType::int64,
      .long_name = "end of a span",
      .definition = "position after its last token",
      .needs = {&kSpans}},
     span_ends},
    {axes,
     {.name = "position",
      .type = VariableType::int64,
      .long_name = "position of a prompt entry",
      .definition = "0..n-1",
      .needs = {&kSaveKeep}},
     positions},
    {axes,
     {.name = "budget_label",
      .dims = "budget",
      .type = VariableType::text,
      .long_name = "budget as a text",
      .definition = "`0.2` (.2, 0.20 and 20% are the same), or a count: `512`"},
     budget_labels},
};

}  // namespace
}  // namespace kvsim
