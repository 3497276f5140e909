#include "run/study/study.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <future>
#include <nlohmann/json.hpp>

#include "analysis/output_norms.hpp"
#include "io/side_files.hpp"
#include "kvsim_version.hpp"
#include "run/study/known_results.hpp"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "sim/policy/policy_run.hpp"

namespace kvsim {
namespace {

constexpr int64_t kSurveyedValues = int64_t{1} << 22;  // norms that wait for the replay: 16 MB

/// Adds the time of its life to a phase.
class Stopwatch {
 public:
  explicit Stopwatch(double& phase) : phase_(phase) {}
  ~Stopwatch() {
    phase_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  double& phase_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Gives the system back what scoring has left free in the heap, where layers are large: what the
/// replay takes next are blocks of other sizes. For small ones new pages cost more than they save.
void give_back_heap(const LayerTrace& layer) {
  constexpr size_t kLarge = size_t{8} << 20;
  if (layer.k.bytes() + layer.v.bytes() < kLarge) return;
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

constexpr const char* kOpenLoopNote =
    "Replay is open loop: queries come from the run with the full cache, so that errors do not "
    "feed back into later layers or steps.";

/// Notes that the scores of a function bring; nothing where the record is no function.
nlohmann::ordered_json function_json(const Record& record, const std::string& trace) {
  const std::string& scores = record.settings.text("scores");
  if (!is_function(scores)) return nullptr;
  return nlohmann::ordered_json::parse(described_function(scores_file(scores, trace)), nullptr,
                                       false);
}

std::string config_json(const StudyPlan& plan, const std::string& trace) {
  nlohmann::ordered_json config;
  config["policies"] = nlohmann::ordered_json::array();
  for (const Record& record : plan.options.records) {
    nlohmann::ordered_json entry;
    entry["record"] = record.canonical();
    entry["preset"] = record.preset;
    entry["variant"] = record.variant;
    entry["parameters"] = record.settings.values();
    if (const auto function = function_json(record, trace); function.is_object())
      entry["function"] = function;
    config["policies"].push_back(std::move(entry));
  }
  for (const Budget& budget : plan.options.budgets) config["budgets"].push_back(budget.label);
  config["layers"] = plan.options.layers;
  StudyOptions measured = plan.options;
  measured.wo_steps = std::ssize(plan.projected_steps);
  config.update(options_text(measured));
  return config.dump();
}

/// Facts of the model that the trace has, as far as it does: where it was found and how it
/// computed.
void describe_model(Dataset& dataset, const std::string& source) {
  const auto told = nlohmann::ordered_json::parse(source, nullptr, false);
  if (!told.is_object()) return;
  for (const char* name : {"model_source", "model_revision", "model_dtype"})
    if (told.contains(name) && told[name].is_string())
      dataset.set_attribute(name, told[name].get<std::string>());
  if (told.contains("libraries") && told["libraries"].is_object())
    dataset.set_attribute("libraries", told["libraries"].dump());
}

/// Root attributes: what ran, on what, with which parameters.
void describe_run(Dataset& dataset, const TraceReader& reader, const StudyPlan& plan,
                  const Backend& backend) {
  const StudyOptions& options = plan.options;
  const TraceInfo& info = reader.info();
  dataset.set_attribute("Conventions", "CF-1.11");
  dataset.set_attribute("title", "Replay of KV-cache compression on captured attention tensors");
  dataset.set_attribute("history", history_line(options.command_line));
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
  dataset.set_attribute("config", config_json(plan, info.path));
  dataset.set_attribute("axes", grid_axes_json(options.records));
  dataset.set_attribute("open_loop_note", kOpenLoopNote);
  if (const std::string idle = idle_settings(dataset, options.records); !idle.empty())
    dataset.set_attribute(kIdleSettings, idle);
  if (const std::string layers = stream_error_layers(dataset); !layers.empty())
    dataset.set_attribute("stream_error_note", "Stream error is of " + layers + ".");
}

}  // namespace

Study::Study(const TraceReader& reader, StudyOptions options, StudyHooks hooks)
    : reader_(reader), hooks_(std::move(hooks)), files_(reader),
      plan_(plan_study(reader, std::move(options), hooks_.message)) {
  files_.read_probes(observing_probes(plan_.records, reader.info()));
  const TraceInfo& info = reader.info();
  const StudyOptions& asked = plan_.options;
  measures_ = std::make_unique<StudyMeasures>(plan_.shape(info), files_, plan_.projected_steps);
  policies_ = std::make_unique<PolicyRun>(plan_.records, asked.budgets, info, asked.layers,
                                          asked.seed, files_);
  periodic_ = std::make_unique<PeriodicPolicies>(*policies_, info, asked.layers, asked.seed,
                                                 files_);
}

Study::~Study() = default;

bool Study::needs_survey() const { return policies_->needs_survey() || periodic_->needs_survey(); }

void Study::say_progress(const std::string& what) {
  const double done = passes_ == 0
                          ? 1
                          : static_cast<double>(passes_done_) / static_cast<double>(passes_);
  if (hooks_.progress) hooks_.progress(done, what);
}

/// Two passes where a record ranks across layers: the scores of all layers, then the replay.
Dataset Study::run(Backend& backend) {
  const std::vector<int>& layers = plan_.options.layers;
  std::vector<int> order = layers;
  if (needs_survey()) order.insert(order.end(), layers.begin(), layers.end());
  // Reads the whole file once more: beside the work, so that both read it while it is in memory.
  auto digest = std::async(std::launch::async, [this] { reader_.digest(); });
  passes_ = std::ssize(order);
  LayersAhead ahead(files_, backend, order);
  if (needs_survey()) survey_layers(ahead, backend);
  replay_layers(ahead, backend);
  say_progress("");
  times_.score += policies_->scoring_seconds();
  times_.rank -= policies_->scoring_seconds();
  digest.get();
  Dataset results = measures_->finish();
  describe_run(results, reader_, plan_, backend);
  return results;
}

LayerTrace Study::next(LayersAhead& ahead) {
  const Stopwatch watch(times_.read);
  return ahead.next();
}

void Study::survey_layers(LayersAhead& ahead, Backend& backend) {
  for (const int layer : plan_.options.layers) {
    say_progress(fmt::format("scores of layer {}", layer));
    survey(backend, next(ahead));
    ++passes_done_;
  }
  const Stopwatch watch(times_.rank);
  policies_->finish_survey();
  periodic_->finish_survey();
}

void Study::replay_layers(LayersAhead& ahead, Backend& backend) {
  for (int64_t l = 0; l < std::ssize(plan_.options.layers); ++l) {
    say_progress(fmt::format("layer {}", plan_.options.layers[l]));
    const LayerTrace trace = next(ahead);
    LayerWork work(trace, backend, plan_.options.importance);
    if (auto known = surveyed_norms_.extract(trace.layer))
      work.set_projected_norms(std::move(known.mapped()));
    run_layer(work, l);
    ++passes_done_;
  }
}

void Study::survey(Backend& backend, const LayerTrace& layer) {
  const Stopwatch watch(times_.rank);
  LayerWork work(layer, backend, plan_.options.importance);
  if (policies_->needs_survey()) policies_->survey(work);
  if (periodic_->needs_survey()) periodic_->survey(layer, backend);
  ProjectedNorms norms = work.take_projected_norms();
  for (const auto& [norm, table] : norms) surveyed_values_ += std::ssize(table.values());
  if (surveyed_values_ <= kSurveyedValues) surveyed_norms_[layer.layer] = std::move(norms);
}

void Study::run_layer(LayerWork& work, int64_t layer) {
  LayerKept kept;
  {
    const Stopwatch watch(times_.rank);
    kept = policies_->select(work);
  }
  give_back_heap(work.trace());
  if (plan_.options.scope != Scope::all) {  // else of all tokens, by the replay itself
    const Stopwatch watch(times_.score);
    work.projected_norms(plan_.options.importance);
  }
  const auto begin = std::chrono::steady_clock::now();
  double inside = 0;  // of what follows, what is no replay
  const PrefillOptions wanted = measures_->replay_options();
  LayerReplay replay(work, *periodic_, kept, policies_->records(), wanted);
  StudyMeasures::Layer measured(*measures_, work, layer, replay, policies_->records());
  const auto see_epoch =
      [&](LayerWork& prompt, const PrefillReplay& epoch, size_t record, int64_t first_step) {
    const Stopwatch watch(inside);
    measured.see_epoch(prompt, epoch, record, first_step);
  };
  replay.run(
      [&](const StepBlock& block) {
    const Stopwatch watch(inside);
    measured.see(block);
      },
      measures_->sees_epochs() ? PeriodicReplay::EpochSink(see_epoch) : nullptr);
  const double both =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  times_.replay += both - inside;
  times_.flops += replay.prefill().flops();
  times_.project += measured.projection_seconds();
  times_.measure += inside - measured.projection_seconds();
  const Stopwatch watch(times_.measure);
  measured.finish();
}

LayersAhead::LayersAhead(const TraceFiles& files, Backend& backend, std::vector<int> order)
    : files_(files), ahead_of_(dynamic_cast<PrefetchingBackend*>(&backend)),
      order_(std::move(order)) {
  start();
}

LayerTrace LayersAhead::next() {
  LayerTrace layer = ahead_.get();
  if (ahead_of_ != nullptr) ahead_of_->begin(layer);
  start();
  return layer;
}

void LayersAhead::start() {
  if (at_ == order_.size()) return;
  ahead_ = std::async(std::launch::async, [this, layer = order_[at_++]] {
    LayerTrace trace = files_.layer(layer);
    if (ahead_of_ != nullptr) ahead_of_->prefetch(trace);
    return trace;
  });
}

std::string history_line(const std::string& command_line) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}", fmt::gmtime(std::time(nullptr)), command_line);
}

}  // namespace kvsim
