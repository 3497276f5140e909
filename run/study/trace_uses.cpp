#include "run/study/study.hpp"
#include "sim/policy/presets.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

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

bool every_layer_rotates(const TraceInfo& info) {
  return std::ranges::all_of(info.layers,
                             [&](int layer) { return info.rotation(layer).pairs() > 0; });
}

std::vector<TraceUse> optional_uses(const TraceReader& trace) {
  const TraceInfo& info = trace.info();
  const auto use = [](const std::string& name, bool there, const char* dataset) {
    return TraceUse{name, there, std::string(there ? "" : "no ") + dataset};
  };
  return {use("keep rates and bias", !info.spans.empty(), "spans"),
          use("residual error", info.has_residual_norm, "residual_norm"),
          use("positions=cache" + indicators_that_move_queries(), every_layer_rotates(info),
              "rope/inv_freq"),
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

std::vector<TraceUses> trace_uses(const TraceReader& trace) {
  return {{"query positions", position_uses(trace)},
          {"optional data", optional_uses(trace)},
          {std::string("preset, at a budget of ") + kBudget, preset_uses(trace)}};
}

}  // namespace kvsim
