#include <fmt/format.h>

#include "analysis/dataset.hpp"
#include "analysis/formulas.hpp"
#include "run/study/study.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/policy/presets.hpp"
#include "sim/stages/indicator/indicator.hpp"
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

/// Number of stored queries directly before position `end`: m such that end-m..end-1 are stored.
int64_t stored_before(const TraceInfo& info, int64_t end) {
  const auto& stored = info.query_position;
  auto at = std::lower_bound(stored.begin(), stored.end(), end);
  int64_t count = 0;
  while (at != stored.begin() && *(at - 1) == end - 1 - count) {
    --at;
    ++count;
  }
  return count;
}

/// How many prompt queries a record observes with, at half of the cache.
int64_t observing(const Settings& settings, const TraceInfo& info) {
  const auto& queries = chosen<Queries>(settings);
  if (queries.looks_ahead()) return 0;
  const int64_t n = info.prompt_len;
  Segment segment;
  segment.range = {0, n};
  queries.observe(settings, queries.window(settings, n / 2, n), info, segment);
  return std::ssize(segment.positions);
}

/// The presets, without variants, that `fits`: "h2o, vatp".
template <class Fits>
std::string presets_that(const Fits& fits) {
  std::string names;
  for (const Preset& preset : presets())
    if (preset.variant.empty() && fits(preset_settings(preset)))
      names += (names.empty() ? "" : ", ") + preset.name;
  return names;
}

/// Uses that the stored query positions are enough for ("What a policy or metric needs").
std::vector<TraceUse> position_uses(const TraceReader& trace) {
  const TraceInfo& info = trace.info();
  const int64_t n = info.prompt_len, later = info.total_len - n;
  const int64_t steps = info.steps(), window = stored_before(info, n);
  const bool whole = window == n, decode = steps == later && later > 0;
  const std::string last = std::to_string(n - 1);
  std::vector<TraceUse> uses;
  uses.push_back(
      {"metrics over later steps, oracles", steps > 0,
       "stored queries at " + std::to_string(n) + " or later: " + std::to_string(steps)});
  uses.push_back({"schedule=decode", decode,
                  decode ? "every later query is stored"
                         : std::to_string(steps) + " of " + std::to_string(later) +
                               " later queries are stored"});
  uses.push_back(
      {"queries=window", window > 0,
       window > 0 ? "window up to " + std::to_string(window) : "query " + last + " is not stored"});
  const auto newest_alone = [&](const Settings& settings) {
    return observing(settings, info) == 1 || chosen<Merge>(settings).uses_attention();
  };
  const auto every_query = [&](const Settings& settings) {
    const auto& queries = chosen<Queries>(settings);
    return queries.observes_all() || (!queries.has_window() && observing(settings, info) == n);
  };
  uses.push_back(
      {presets_that(newest_alone), window > 0,
       window > 0 ? "query " + last + " is stored" : "query " + last + " is not stored"});
  uses.push_back({"score_estimate", window > 1,
                  window > 1 ? "window up to " + std::to_string(window - 1)
                             : "queries before " + std::to_string(n) + " are not stored"});
  uses.push_back({presets_that(every_query), whole,
                  whole ? "every prompt query is stored" : "every prompt query is needed"});
  uses.push_back({"queries=last", window > 0, "last_queries up to " + std::to_string(window)});
  uses.push_back({"schedule=periodic", whole && decode,
                  whole && decode ? "every query is stored"
                                  : "what a policy needs must be stored before each compression"});
  return uses;
}

/// ", indicator=NAME" for each.
std::string indicators_that_move_queries() {
  std::string names;
  for (const KindInfo* kind : kinds_of_stage("indicator"))
    if (Kinds<Indicator>::find(kind->name).use().moves_queries)
      names += ", indicator=" + kind->name;
  return names;
}

std::vector<TraceUse> optional_uses(const TraceReader& trace) {
  const TraceInfo& info = trace.info();
  const auto use = [](const std::string& name, bool there, const char* dataset) {
    return TraceUse{name, there, std::string(there ? "" : "no ") + dataset};
  };
  const bool rotates = std::ranges::all_of(
      info.layers, [&](int layer) { return info.rotation(layer).pairs() > 0; });
  return {use("keep rates and bias", !info.spans.empty(), "spans"),
          use("residual error", info.has_residual_norm, "residual_norm"),
          use("positions=cache" + indicators_that_move_queries(), rotates, "rope/inv_freq"),
          use("verify", !info.check_position.empty(), "recorded outputs")};
}

constexpr const char* kBudget = "0.5";

/// Which presets the trace can serve; the same check as before a replay. Files that a preset needs
/// are not named yet, and so none is opened.
std::vector<TraceUse> preset_uses(const TraceReader& trace) {
  std::vector<TraceUse> uses;
  StudyOptions options;
  options.budgets = {Budget::parse(kBudget)};
  options.layers = trace.info().layers;
  for (const Preset& preset : presets()) {
    options.records = {{preset.name, preset.variant, preset_settings(preset)}};
    TraceUse use{preset_title(preset), true, ""};
    for (const std::string& file : file_keys(options.records.front().settings))
      use.detail = "with " + file + "=FILE";
    try {
      plan_study(trace, options);
    } catch (const Error& error) {
      const Error::Parts& parts = error.parts();
      use.served = false;
      use.detail = parts.expected.empty() ? parts.what : "needs " + parts.expected;
    }
    uses.push_back(std::move(use));
  }
  return uses;
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

std::vector<TraceUses> trace_uses(const TraceReader& trace) {
  return {{"query positions", position_uses(trace)},
          {"optional data", optional_uses(trace)},
          {std::string("preset, at a budget of ") + kBudget, preset_uses(trace)}};
}

}  // namespace kvsim
