#include "run/study/study.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <future>
#include <nlohmann/json.hpp>

#include "analysis/measure.hpp"
#include "io/side_files.hpp"
#include "kvsim_version.hpp"

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

/// Dimensions, coordinates and undefined variables of a run.
Dataset empty_results(const RunShape& run) {
  Dataset dataset;
  for (const VariableDeclaration& declaration : declared_variables()) {
    if (!is_written(declaration, run)) continue;
    if (declaration.known == nullptr) {
      dataset.add(make_variable(declaration, dataset));
      continue;
    }
    VariableValues values = declaration.known(run);
    if (declaration.is_coordinate())
      dataset.add_dimension(declaration.name,
                            std::visit([](const auto& v) { return std::ssize(v); }, values));
    Variable variable = make_variable(declaration, dataset);
    variable.values = std::move(values);
    dataset.add(std::move(variable));
  }
  return dataset;
}

MeasureNeeds together(const std::vector<std::unique_ptr<Measure>>& measures) {
  MeasureNeeds all;
  for (const auto& measure : measures) {
    const MeasureNeeds own = measure->needs();
    all.attention_columns = std::max(all.attention_columns, own.attention_columns);
    all.head_norms |= own.head_norms;
    all.rounding_norms |= own.rounding_norms;
    all.span_parts |= own.span_parts;
    all.slot_changes |= own.slot_changes;
    all.pairs |= own.pairs;
    all.epochs |= own.epochs;
  }
  return all;
}

}  // namespace

/// The results of one study, and the measures that fill them: each is made if some variable of it
/// is written. All that it is given must outlive it.
class StudyMeasures {
 public:
  StudyMeasures(const RunShape& run, const SideFiles& files, std::vector<int64_t> projected_steps)
      : dataset_(empty_results(run)), run_{run, files, std::move(projected_steps)} {
    for (const DeclareMeasure* measure : declared_measures()) {
      const bool written = std::ranges::any_of(
          measure->variables,
          [&](const VariableDeclaration& variable) { return dataset_.has(variable.name); });
      if (written && measure->make != nullptr) measures_.push_back(measure->make(run_));
    }
    needs_ = together(measures_);
  }

  /// Work of a layer's replay for the measures.
  PrefillOptions replay_options() const {
    PrefillOptions options;
    options.scope = run_.options.scope;
    options.norm = run_.options.importance;
    options.seed = run_.options.seed;
    options.slot_changes = needs_.slot_changes;
    options.pairs = needs_.pairs;
    if (needs_.span_parts)
      for (const SpanTokens& span : run_.spans) options.parts.push_back(span.ranges);
    if (!needs_.head_norms) options.output_steps = run_.projected_steps;
    return options;
  }
  bool sees_epochs() const { return needs_.epochs; }
  /// One layer: its measures are written when Layer::finish() returns.
  class Layer;

  /// Adds what is known only at the end, and hands the results over.
  Dataset finish() {
    MeasureResults results(dataset_);
    for (const auto& measure : measures_) measure->finish_run(results);
    return std::move(dataset_);
  }

 private:
  Dataset dataset_;
  MeasureRun run_;
  std::vector<std::unique_ptr<Measure>> measures_;
  MeasureNeeds needs_;  ///< of all
};

class StudyMeasures::Layer {
 public:
  Layer(StudyMeasures& study, LayerWork& work, int64_t index, const LayerReplay& replay,
        const std::vector<Record>& records)
      : study_(study), norms_(work, replay.count(), study.run_.projected_steps,
                              study.needs_.head_norms, study.needs_.rounding_norms),
        layer_{work, index, replay, records, study.run_.options.records.size(), norms_},
        results_(study.dataset_) {
    for (const auto& measure : study_.measures_) measure->start(layer_);
  }

  void see(const StepBlock& block) {
    if (block.full != nullptr)
      for (const auto& measure : study_.measures_) measure->see_full(*block.full);
    parallel_for(std::ssize(block.outcomes), [&](int64_t at) {  // each writes to its own series
      for (const auto& measure : study_.measures_) measure->see(block, block.outcomes[at]);
    });
    norms_.add(block);
  }

  void see_epoch(LayerWork& prompt, const PrefillReplay& replay, size_t record,
                 int64_t first_step) {
    if (record >= layer_.shown) return;
    const MeasuredEpoch epoch{prompt, layer_.index, replay, static_cast<int>(record), first_step};
    for (const auto& measure : study_.measures_) measure->see_epoch(epoch, results_);
  }

  void finish() {
    read_rows();
    for (const auto& measure : study_.measures_) measure->finish(layer_, results_);
  }

  double projection_seconds() const { return norms_.seconds(); }

 private:
  void read_rows() {
    std::vector<Measure*> readers;
    for (const auto& measure : study_.measures_) {
      if (measure->needs().attention_columns == 0) continue;
      readers.push_back(measure.get());
      measure->start_rows(layer_);
    }
    if (readers.empty()) return;
    const AttentionPass pass{.positions = layer_.work.info().later_queries(),
                             .look_ahead = true,
                             .columns = study_.needs_.attention_columns};
    for_each_attention_block(layer_.work, pass, [&](const AttentionBlock& rows, int64_t first) {
      for (Measure* reader : readers) reader->see_rows(rows, first);
    });
  }

  StudyMeasures& study_;
  OutputNorms norms_;
  MeasuredLayer layer_;
  MeasureResults results_;
};

/// Reads layers one after the other, one ahead of the work.
class LayersAhead {
 public:
  /// `order`: what next() will be asked for; `waiting`: seconds spent there. What is given must
  /// outlive this.
  LayersAhead(const TraceFiles& files, Backend& backend, std::vector<int> order, double& waiting)
      : files_(files), ahead_of_(dynamic_cast<PrefetchingBackend*>(&backend)),
        order_(std::move(order)), waiting_(waiting) {
    start();
  }

  /// Waits for the next layer and begins to read the one after it.
  LayerTrace next() {
    const Stopwatch watch(waiting_);
    LayerTrace layer = ahead_.get();
    if (ahead_of_ != nullptr) ahead_of_->begin(layer);
    start();
    return layer;
  }

 private:
  void start() {
    if (at_ == order_.size()) return;
    ahead_ = std::async(std::launch::async, [this, layer = order_[at_++]] {
      LayerTrace trace = files_.layer(layer);
      if (ahead_of_ != nullptr) ahead_of_->prefetch(trace);
      return trace;
    });
  }

  const TraceFiles& files_;
  PrefetchingBackend* ahead_of_;  ///< null if it needs no word of what comes
  std::vector<int> order_;
  double& waiting_;
  size_t at_ = 0;
  std::future<LayerTrace> ahead_;
};

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
  LayersAhead ahead(files_, backend, order, times_.read);
  if (needs_survey()) survey(ahead, backend);
  for (int64_t l = 0; l < std::ssize(layers); ++l) {
    say_progress(fmt::format("layer {}", layers[l]));
    const LayerTrace trace = ahead.next();
    LayerWork work(trace, backend, plan_.options.importance);
    if (auto known = surveyed_norms_.extract(trace.layer))
      work.set_projected_norms(std::move(known.mapped()));
    run_layer(work, l);
    ++passes_done_;
  }
  say_progress("");
  times_.score += policies_->scoring_seconds();
  times_.rank -= policies_->scoring_seconds();
  digest.get();
  Dataset results = measures_->finish();
  describe_run(results, reader_, plan_, backend);
  return results;
}

void Study::survey(LayersAhead& ahead, Backend& backend) {
  for (const int layer : plan_.options.layers) {
    say_progress(fmt::format("scores of layer {}", layer));
    const LayerTrace trace = ahead.next();
    const Stopwatch watch(times_.rank);
    LayerWork work(trace, backend, plan_.options.importance);
    if (policies_->needs_survey()) policies_->survey(work);
    if (periodic_->needs_survey()) periodic_->survey(trace, backend);
    ProjectedNorms norms = work.take_projected_norms();
    for (const auto& [norm, table] : norms) surveyed_values_ += std::ssize(table.values());
    if (surveyed_values_ <= kSurveyedValues) surveyed_norms_[layer] = std::move(norms);
    ++passes_done_;
  }
  const Stopwatch watch(times_.rank);
  policies_->finish_survey();
  periodic_->finish_survey();
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

std::string history_line(const std::string& command_line) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}", fmt::gmtime(std::time(nullptr)), command_line);
}

}  // namespace kvsim
