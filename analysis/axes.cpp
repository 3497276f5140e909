// The dimensions of every results file, and what describes them.
#include <numeric>

#include "analysis/measure.hpp"

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

}  // namespace
}  // namespace kvsim
