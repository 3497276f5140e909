#include <fmt/format.h>

#include "analysis/dataset.hpp"
#include "analysis/formulas.hpp"
#include "run/study/study.hpp"
#include "run/trace/trace_files.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

/// Items whose `key` came before are left out.
template <class Item, class Key>
void take_doubles_out(std::vector<Item>& items, Key key) {
  std::set<decltype(key(items.front()))> seen;
  std::erase_if(items, [&](const Item& item) { return !seen.insert(key(item)).second; });
}

void take_doubles_out(std::vector<Record>& records) {
  take_doubles_out(records, [](const Record& record) { return record.canonical(); });
}

/// Layers that see less than the whole trace are not compressed (their cache is bounded anyway):
/// they are listed in `left_out`.
std::vector<int> replayed_layers(const TraceReader& reader, const std::vector<int>& wanted,
                                 std::string& left_out) {
  std::vector<int> kept;
  for (const int layer : wanted) {
    const int64_t window = reader.header(layer).sliding_window;
    if (window == 0 || window >= reader.info().total_len) {
      kept.push_back(layer);
    } else {
      left_out += (left_out.empty() ? "" : ", ") + std::to_string(layer);
    }
  }
  if (kept.empty())
    bad_data({"no layer to replay", reader.info().path,
              "only layers with a sliding window shorter than the trace: " + left_out,
              "at least one layer that sees the whole trace"});
  return kept;
}

/// Merging of keys as they are needs logits that are linear in them.
void check_logits(const TraceReader& trace, const std::vector<Record>& records,
                  const std::vector<int>& layers) {
  for (const Record& record : records) {
    if (!chosen<Merge>(record.settings).needs_linear_logits()) continue;
    for (const int layer : layers) {
      if (trace.header(layer).softcap == 0) continue;
      bad_data({"policy " + record.canonical() + " needs logits that are linear in the key",
                fmt::format("{}, layer {}", trace.info().path, layer),
                fmt::format("softcap {}", trace.header(layer).softcap), "layers without softcap",
                "merge=convex works there"});
    }
  }
}

/// visit(measure, variable) for all that the run writes.
template <class Visit>
void for_each_written(const RunShape& run, Visit visit) {
  for (const DeclareMeasure* measure : declared_measures())
    for (const VariableDeclaration& variable : measure->variables)
      if (is_written(variable, run)) visit(measure->info, variable);
}

/// Records that are replayed beside the run's own for what it measures.
std::vector<Record> records_beside(const RunShape& run) {
  std::vector<Record> records;
  for_each_written(run, [&](const MeasureInfo&, const VariableDeclaration& variable) {
    if (*variable.beside != '\0') records.push_back(Record::parse(variable.beside));
  });
  return records;
}

/// Does the trace hold the queries that a measure of the run reads?
void check_measures(const RunShape& run, const SideFiles& files) {
  std::set<std::string> checked;
  for_each_written(run, [&](const MeasureInfo& measure, const VariableDeclaration&) {
    if (measure.observes == nullptr || !checked.insert(measure.name).second) return;
    for (const std::string& record : measure.observes())
      check_records({Record::parse(record)}, {Budget::parse("0.5")}, run.info, run.options.layers,
                    files, fmt::format(" of metric {}", measure.name));
  });
}

}  // namespace

int64_t default_wo_steps(const TraceInfo& info, int64_t value_dim) {
  // A run of usual size has eight policies at five budgets up to 0.7.
  constexpr double kPolicies = 8, kBudgets = 5, kLargest = 0.7;
  constexpr double kFreeFlops = 1e10;  // a fifth of a second on two cores
  constexpr int64_t kFewest = 16;
  const auto heads = static_cast<double>(info.num_query_heads);
  const auto steps = static_cast<double>(info.steps());
  const double unit = 2 * heads * steps * static_cast<double>(info.prompt_len) *
                      static_cast<double>(info.head_dim + value_dim) / 2;
  const double replay = (2 + kPolicies * kLargest) * unit;
  const double per_step = 2 * heads * static_cast<double>(value_dim * info.hidden_size) *
                          (kPolicies * kBudgets + 1);
  const double affordable = std::max(replay / 4, kFreeFlops) / per_step;
  if (affordable >= steps) return info.steps();
  return std::min(info.steps(), std::max(kFewest, static_cast<int64_t>(affordable)));
}

void take_doubles_out(StudyOptions& options, int64_t prompt_len) {
  take_doubles_out(options.records);
  take_doubles_out(options.budgets, [&](const Budget& budget) {
    return budget_ratio(budget, options.records, prompt_len);
  });
}

void check_served(const TraceReader& trace, const TraceInfo& later,
                  const std::vector<Record>& records, const std::vector<Budget>& budgets,
                  const std::vector<int>& layers) {
  const TraceFiles files(trace);
  check_records(records, budgets, trace.info(), layers, files);
  check_compressions(records, budgets, later, layers, files);
  check_logits(trace, records, layers);
}

StudyPlan plan_study(const TraceReader& trace, StudyOptions options,
                     const std::function<void(const std::string&)>& message) {
  const TraceInfo& info = trace.info();
  if (info.steps() == 0)
    bad_data({"nothing to replay", info.path, "no stored query at or after prompt_len",
              "queries of later steps"});
  take_doubles_out(options, info.prompt_len);
  std::string left_out;
  options.layers = replayed_layers(trace, options.layers, left_out);
  options.metrics = variables_of(options.metrics);
  if (!options.wo_steps)
    options.wo_steps = default_wo_steps(info, trace.header(options.layers.front()).value_dim);
  StudyPlan plan{.options = std::move(options), .spans = {}, .records = {}, .projected_steps = {}};
  plan.spans = span_tokens(info, plan.options.span_complements);
  plan.projected_steps = evaluated_steps(info.steps(), *plan.options.wo_steps);
  plan.records = plan.options.records;
  for (Record& record : records_beside(plan.shape(info))) plan.records.push_back(std::move(record));
  take_doubles_out(plan.records);
  check_served(trace, info, plan.records, plan.options.budgets, plan.options.layers);
  check_measures(plan.shape(info), TraceFiles(trace));
  if (!left_out.empty() && message)
    message(fmt::format("{}: layers left alone, since their sliding window is shorter than the "
                        "trace: {}",
                        info.path, left_out));
  return plan;
}

}  // namespace kvsim
