#include "run/study/run_record.hpp"

#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "analysis/stream_layers.hpp"
#include "io/side_files.hpp"
#include "kvsim_version.hpp"
#include "run/study/equal_bytes.hpp"
#include "run/study/grid_axes.hpp"
#include "run/study/idle_settings.hpp"
#include "run/study/known_results.hpp"
#include "run/study/option_table.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

constexpr const char* kOpenLoopNote =
    "Replay is open loop: queries come from the run with the full cache, so that errors do not "
    "feed back into later layers or steps.";

std::string time_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

/// What the scores of a function say of it; nothing where the record is no function.
nlohmann::ordered_json function_json(const Record& record, const std::string& trace) {
  const std::string& scores = record.settings.text("scores");
  if (!is_function(scores)) return nullptr;
  return nlohmann::ordered_json::parse(described_function(scores_file(scores, trace)), nullptr,
                                       false);
}

std::string config_json(const StudyOptions& options, const std::vector<Record>& records,
                        const std::string& trace, int64_t wo_steps) {
  nlohmann::ordered_json config;
  config["policies"] = nlohmann::ordered_json::array();
  for (const Record& record : records) {
    nlohmann::ordered_json entry;
    entry["record"] = record.canonical();
    entry["preset"] = record.preset;
    entry["variant"] = record.variant;
    entry["parameters"] = record.settings.values();
    if (const auto function = function_json(record, trace); function.is_object())
      entry["function"] = function;
    config["policies"].push_back(std::move(entry));
  }
  for (const Budget& budget : options.budgets) config["budgets"].push_back(budget.label);
  config["layers"] = options.layers;
  StudyOptions measured = options;
  measured.wo_steps = wo_steps;
  config.update(options_text(measured));
  return config.dump();
}

/// What the trace says of the model, as far as it does: where it was found and how it computed.
void describe_model(Dataset& dataset, const std::string& source) {
  const auto told = nlohmann::ordered_json::parse(source, nullptr, false);
  if (!told.is_object()) return;
  for (const char* name : {"model_source", "model_revision", "model_dtype"})
    if (told.contains(name) && told[name].is_string())
      dataset.set_attribute(name, told[name].get<std::string>());
  if (told.contains("libraries") && told["libraries"].is_object())
    dataset.set_attribute("libraries", told["libraries"].dump());
}

}  // namespace

void describe_run(Dataset& dataset, const TraceReader& reader, const StudyOptions& options,
                  const std::vector<Record>& records, const Backend& backend, int64_t wo_steps) {
  const TraceInfo& info = reader.info();
  dataset.set_attribute("Conventions", "CF-1.11");
  dataset.set_attribute("title", "Replay of KV-cache compression on captured attention tensors");
  dataset.set_attribute("history", time_now() + " " + options.command_line);
  dataset.set_attribute("kvsim_version", KVSIM_VERSION);
  dataset.set_attribute(kResultsVersionAttribute, kResultsVersion);
  dataset.set_attribute("git_commit", KVSIM_GIT_COMMIT);
  dataset.set_attribute("build", KVSIM_BUILD);
  dataset.set_attribute("trace", std::filesystem::path(info.path).filename().string());
  dataset.set_attribute(kTracePath, std::filesystem::canonical(info.path).string());
  dataset.set_attribute("trace_digest", reader.digest());
  if (!reader.later().empty()) dataset.set_attribute("later", reader.later());
  dataset.set_attribute("model", info.model);
  describe_model(dataset, info.source);
  dataset.set_attribute("num_layers", static_cast<int64_t>(info.num_layers));
  dataset.set_attribute("prompt_len", info.prompt_len);
  dataset.set_attribute("total_len", info.total_len);
  dataset.set_attribute("seed", static_cast<int64_t>(options.seed));
  dataset.set_attribute("threads", static_cast<int64_t>(threads()));
  dataset.set_attribute("backend", backend.name());
  dataset.set_attribute("device", backend.device());
  if (!options.equal_bytes.empty()) dataset.set_attribute(kEqualBytes, options.equal_bytes);
  dataset.set_attribute("config", config_json(options, records, info.path, wo_steps));
  dataset.set_attribute("axes", grid_axes_json(options.records));
  dataset.set_attribute("open_loop_note", kOpenLoopNote);
  if (const std::string idle = idle_settings(dataset, options.records); !idle.empty())
    dataset.set_attribute(kIdleSettings, idle);
  if (const std::string layers = stream_error_layers(dataset); !layers.empty()) {
    dataset.set_attribute("stream_error_note", "Stream error is of " + layers + ".");
  }
}

}  // namespace kvsim
