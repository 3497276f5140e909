#include "run/study/study_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "analysis/output_error.hpp"
#include "analysis/variables.hpp"
#include "run/study/study_measures.hpp"
#include "run/trace/trace_files.hpp"
#include "sim/core/error.hpp"
#include "sim/policy/trace_check.hpp"
#include "sim/replay/periodic.hpp"
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

/// Layers that see less than the whole trace are not compressed (their cache is bounded anyway).
std::vector<int> replayed_layers(const TraceReader& reader, const std::vector<int>& wanted,
                                 const std::function<void(const std::string&)>& message) {
  std::vector<int> kept;
  std::string left_out;
  for (const int layer : wanted) {
    const int64_t window = reader.header(layer).sliding_window;
    if (window == 0 || window >= reader.info().total_len) {
      kept.push_back(layer);
    } else {
      left_out += (left_out.empty() ? "" : ", ") + std::to_string(layer);
    }
  }
  if (kept.empty()) {
    bad_data({.what = "no layer to replay",
              .where = reader.info().path,
              .found = "only layers with a sliding window shorter than the trace: " + left_out,
              .expected = "at least one layer that sees the whole trace"});
  }
  if (!left_out.empty() && message) {
    message(fmt::format("{}: layers left alone, since their sliding window is shorter than the "
                        "trace: {}",
                        reader.info().path, left_out));
  }
  return kept;
}

/// Merging of keys as they are needs logits that are linear in them.
void check_logits(const TraceReader& trace, const StudyPlan& plan) {
  for (const Record& record : plan.records) {
    if (!chosen<Merge>(record.settings).needs_linear_logits()) continue;
    for (const int layer : plan.options.layers) {
      if (trace.header(layer).softcap == 0) continue;
      bad_data({.what = "policy " + record.canonical() + " needs logits that are linear in the key",
                .where = fmt::format("{}, layer {}", trace.info().path, layer),
                .found = fmt::format("softcap {}", trace.header(layer).softcap),
                .expected = "layers without softcap",
                .hint = "merge=convex works there"});
    }
  }
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

StudyPlan plan_study(const TraceReader& trace, StudyOptions options,
                     const std::function<void(const std::string&)>& message) {
  const TraceInfo& info = trace.info();
  if (info.steps() == 0)
    bad_data({.what = "nothing to replay",
              .where = info.path,
              .found = "no stored query at or after prompt_len",
              .expected = "queries of later steps"});
  take_doubles_out(options, info.prompt_len);
  options.layers = replayed_layers(trace, options.layers, message);
  options.metrics = variables_of(options.metrics);
  if (!options.wo_steps)
    options.wo_steps = default_wo_steps(info, trace.header(options.layers.front()).value_dim);
  StudyPlan plan{.options = std::move(options), .spans = {}, .records = {}, .projected_steps = {}};
  plan.spans = span_tokens(info, plan.options.span_complements);
  plan.projected_steps = evaluated_steps(info.steps(), *plan.options.wo_steps);
  plan.records = plan.options.records;
  for (Record& record : records_beside(plan.shape(info))) plan.records.push_back(std::move(record));
  take_doubles_out(plan.records);
  return plan;
}

void check_study(const TraceReader& trace, const StudyPlan& plan, const SideFiles& files) {
  const std::vector<Budget>& budgets = plan.options.budgets;
  const std::vector<int>& layers = plan.options.layers;
  check_records(plan.records, budgets, trace.info(), layers, files);
  check_measures(plan.shape(trace.info()), files);
  check_compressions(plan.records, budgets, trace.info(), layers, files);
  check_logits(trace, plan);
}

void check_study(const TraceReader& trace, const StudyOptions& options) {
  check_study(trace, plan_study(trace, options), TraceFiles(trace));
}

}  // namespace kvsim
