#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "analysis/variables.hpp"
#include "kvsim_version.hpp"
#include "run/attention_study.hpp"
#include "run/study_results.hpp"
#include "sim/core/parallel.hpp"
#include "sim/replay/compression.hpp"
#include "sim/stages/quantize/quantize.hpp"

namespace kvsim {
namespace {

constexpr const char* kOpenLoopNote =
    "Replay is open loop: queries come from the run with the full cache, so that errors do not "
    "feed back into later layers or steps.";

constexpr const char* kScopeNames[] = {"prompt", "evictable", "all"};

unsigned occasion_of(const TraceReader& reader, const StudyOptions& options,
                     const std::vector<Record>& records, bool spans) {
  unsigned occasion = kAlways;
  const auto any = [&](auto test) { return std::ranges::any_of(records, test); };
  if (reader.info().has_residual_norm) occasion |= kResidualNorm;
  if (spans) occasion |= kSpans;
  if (options.per_head) occasion |= kPerHead;
  if (options.save_keep) occasion |= kSaveKeep;
  if (options.bandwidth && options.peak) occasion |= kRoofline;
  if (any([](const Record& r) { return r.settings.is("granularity", "query"); })) {
    occasion |= kQueryHeads;
  }
  if (any([](const Record& r) { return quantizer(r.settings).changes_entries(); })) {
    occasion |= kQuantizes;
  }
  if (any([](const Record& r) { return merges(r.settings); })) occasion |= kMerges;
  return occasion;
}

template <class T>
std::vector<T> counting(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), T{0});
  return values;
}

/// What is known of the axes before anything is measured, beside their coordinates.
constexpr std::string_view kDescribed[] = {"budget_label", "span_begin", "span_end"};

/// Values of every coordinate, and of what is described.
VariableValues coordinate_values(const std::string& name, const TraceInfo& info,
                                 const StudyOptions& options, const std::vector<Record>& records,
                                 const std::vector<SpanTokens>& spans) {
  if (auto values = attention_coordinate(name, info)) return std::move(*values);
  std::vector<std::string> texts;
  if (name == "policy") {
    for (const Record& record : records) texts.push_back(record.canonical());
  } else if (name == "budget_label") {
    for (const Budget& budget : options.budgets) texts.push_back(budget.label);
  } else if (name == "span") {
    for (const SpanTokens& span : spans) texts.push_back(span.name);
  } else if (name == "span_begin" || name == "span_end") {
    std::vector<int64_t> positions;
    for (const SpanTokens& span : spans) {
      const bool none = span.ranges.empty();   // a complement of the whole prompt
      const int64_t begin = none ? 0 : span.ranges.front().begin;
      positions.push_back(name == "span_begin" ? begin : none ? 0 : span.ranges.back().end);
    }
    return positions;
  } else if (name == "bound") {
    for (const MergeBound& bound : merge_bounds()) texts.push_back(bound.name);
  } else if (name == "score") {
    texts = predicted_scores();
  } else if (name == "predictor") {
    texts = score_predictors();
  } else if (name == "delay") {
    return bound_delays();
  } else if (name == "budget") {
    std::vector<double> ratios;
    for (const Budget& budget : options.budgets) ratios.push_back(budget.ratio(info.prompt_len));
    return ratios;
  } else if (name == "layer") {
    return std::vector<int32_t>(options.layers.begin(), options.layers.end());
  } else if (name == "head") {
    return counting<int32_t>(info.num_query_heads);
  } else if (name == "kv_head") {
    return counting<int32_t>(info.num_kv_heads);
  } else if (name == "step") {
    return std::vector<int64_t>(info.query_position.begin() + info.first_step(),
                                info.query_position.end());
  } else {
    return counting<int64_t>(info.prompt_len);   // position
  }
  return texts;
}

int64_t dimension_size(const VariableValues& values) {
  return std::visit([](const auto& v) { return static_cast<int64_t>(v.size()); }, values);
}

std::string time_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

std::string config_json(const StudyOptions& options, const std::vector<Record>& records,
                        int64_t wo_steps) {
  nlohmann::ordered_json config;
  config["policies"] = nlohmann::ordered_json::array();
  for (const Record& record : records) {
    nlohmann::ordered_json entry;
    entry["record"] = record.canonical();
    entry["preset"] = record.preset;
    entry["variant"] = record.variant;
    entry["parameters"] = record.settings.values();
    config["policies"].push_back(std::move(entry));
  }
  for (const Budget& budget : options.budgets) config["budgets"].push_back(budget.label);
  config["layers"] = options.layers;
  config["importance"] = options.importance == Norm::l1 ? "l1" : "l2";
  config["scope"] = kScopeNames[static_cast<size_t>(options.scope)];
  config["outlier"] = options.outlier;
  config["wo_steps"] = wo_steps;
  config["metrics"] = options.metrics;
  config["per_head"] = options.per_head;
  config["save_keep"] = options.save_keep;
  config["horizon"] = options.horizon;
  config["span_complements"] = options.span_complements;
  config["element_bytes"] = options.element_bytes;
  if (options.bandwidth) config["bandwidth"] = *options.bandwidth;
  if (options.peak) config["peak"] = *options.peak;
  return config.dump();
}

}  // namespace

Dataset empty_results(const TraceReader& reader, const StudyOptions& options,
                      const std::vector<Record>& records, const std::vector<SpanTokens>& spans) {
  const unsigned occasion = occasion_of(reader, options, records, !spans.empty());
  Dataset dataset;
  for (const VariableDeclaration& declaration : declared_variables()) {
    if (!is_written(declaration, occasion, options.metrics)) continue;
    const std::string name = declaration.name;
    const bool coordinate = declaration.dim_names() == std::vector<std::string>{name};
    if (!coordinate && std::ranges::find(kDescribed, name) == std::end(kDescribed)) {
      dataset.add(make_variable(declaration, dataset));
      continue;
    }
    VariableValues values = coordinate_values(name, reader.info(), options, records, spans);
    if (coordinate) dataset.add_dimension(name, dimension_size(values));
    Variable variable = make_variable(declaration, dataset);
    variable.values = std::move(values);
    dataset.add(std::move(variable));
  }
  return dataset;
}

void describe_run(Dataset& dataset, const TraceReader& reader, const StudyOptions& options,
                  const std::vector<Record>& records, const Backend& backend, int64_t wo_steps) {
  const TraceInfo& info = reader.info();
  dataset.set_attribute("Conventions", "CF-1.11");
  dataset.set_attribute("title", "Replay of KV-cache compression on captured attention tensors");
  dataset.set_attribute("history", time_now() + " " + options.command_line);
  dataset.set_attribute("kvsim_version", KVSIM_VERSION);
  dataset.set_attribute("git_commit", KVSIM_GIT_COMMIT);
  dataset.set_attribute("build", KVSIM_BUILD);
  dataset.set_attribute("trace", std::filesystem::path(info.path).filename().string());
  dataset.set_attribute("trace_digest", reader.digest());
  dataset.set_attribute("model", info.model);
  dataset.set_attribute("prompt_len", info.prompt_len);
  dataset.set_attribute("total_len", info.total_len);
  dataset.set_attribute("seed", static_cast<int64_t>(options.seed));
  dataset.set_attribute("threads", static_cast<int64_t>(threads()));
  dataset.set_attribute("backend", backend.name());
  dataset.set_attribute("device", backend.device());
  dataset.set_attribute("config", config_json(options, records, wo_steps));
  dataset.set_attribute("open_loop_note", kOpenLoopNote);
}

}  // namespace kvsim
