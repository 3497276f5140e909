#include "run/trace/trace_files.hpp"

#include "io/side_files.hpp"
#include "sim/policy/presets.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {

LayerTrace TraceFiles::layer(int layer) const {
  const std::lock_guard lock(access_);
  return trace_.read_layer(layer, false, probes_);
}

Table<double> TraceFiles::scores(const std::string& path, int layer, int64_t owners,
                                 int64_t entries) const {
  const std::lock_guard lock(access_);
  return read_scores(scores_file(path, trace_.info().path), layer, owners, entries);
}

Table<double> TraceFiles::table(const std::string& path, int64_t rows, int64_t columns) const {
  return read_table(path, rows, columns);
}

std::vector<std::string> TraceFiles::token_text() const {
  const std::lock_guard lock(access_);
  return trace_.token_text();
}

namespace {

std::vector<TraceUseGroup>& groups() {
  static std::vector<TraceUseGroup> all;
  return all;
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

const bool uses_registered =
    register_trace_uses({.rank = 0, .title = "query positions", .list = position_uses}) &&
    register_trace_uses({.rank = 1, .title = "optional data", .list = optional_uses});

}  // namespace

bool register_trace_uses(TraceUseGroup group) {
  const auto later = [](const TraceUseGroup& a, const TraceUseGroup& b) { return a.rank < b.rank; };
  groups().insert(std::upper_bound(groups().begin(), groups().end(), group, later), group);
  return true;
}

const std::vector<TraceUseGroup>& trace_use_groups() { return groups(); }

std::vector<Range> runs_of(const std::vector<int64_t>& positions) {
  std::vector<Range> runs;
  for (const int64_t position : positions) {
    if (!runs.empty() && runs.back().end == position) {
      ++runs.back().end;
    } else {
      runs.push_back({position, position + 1});
    }
  }
  return runs;
}

std::string runs_text(const std::vector<int64_t>& positions, size_t most) {
  const std::vector<Range> runs = runs_of(positions);
  std::string text;
  for (size_t r = 0; r < runs.size(); ++r) {
    if (r == most) return text + ", ...";
    text += (r > 0 ? ", " : "") + std::to_string(runs[r].begin);
    if (runs[r].size() > 1) text += "-" + std::to_string(runs[r].end - 1);
  }
  return text.empty() ? "none" : text;
}

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

}  // namespace kvsim
