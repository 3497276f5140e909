#include "run/study/study.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "analysis/output_error.hpp"
#include "io/side_files.hpp"
#include "run/measures/study_measures.hpp"
#include "run/measures/variables.hpp"
#include "run/study/layer_store.hpp"
#include "run/study/run_record.hpp"
#include "sim/backend/cuda_backend.hpp"
#include "sim/core/archive.hpp"
#include "sim/core/error.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

constexpr int64_t kSurveyedValues = int64_t{1} << 22;  // norms that wait for the replay: 16 MB

/// Side files of records, read while layers are read ahead.
class GuardedSideFiles : public SideFiles {
 public:
  GuardedSideFiles(const TraceReader& reader, std::mutex& access)
      : reader_(reader), access_(access) {}
  Table<double> scores(const std::string& path, int layer, int64_t owners,
                       int64_t entries) const override {
    const std::lock_guard lock(access_);
    return read_scores(path, layer, owners, entries);
  }
  Table<double> table(const std::string& path, int64_t rows, int64_t columns) const override {
    return read_table(path, rows, columns);
  }
  std::vector<std::string> token_text() const override {
    const std::lock_guard lock(access_);
    return reader_.token_text();
  }

 private:
  const TraceReader& reader_;
  std::mutex& access_;
};

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

template <class Item, class Key>
std::vector<Item> without_doubles(std::vector<Item> items, Key key) {
  std::vector<Item> kept;
  for (Item& item : items) {
    const auto same = [&](const Item& other) { return key(other) == key(item); };
    if (std::ranges::none_of(kept, same)) kept.push_back(std::move(item));
  }
  return kept;
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

}  // namespace

int64_t default_wo_steps(const TraceInfo& info, int64_t value_dim) {
  // What a run of usual size would spend: eight policies at five budgets up to 0.7.
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

/// Reads layers one after the other, one ahead of the work.
class Study::Layers {
 public:
  /// `order`: what next() will be asked for.
  Layers(Study& study, Backend& backend, std::vector<int> order)
      : study_(study), ahead_of_(dynamic_cast<PrefetchingBackend*>(&backend)),
        order_(std::move(order)) {
    start();
  }

  LayerTrace next() {
    const Stopwatch watch(study_.times_.read);
    LayerTrace layer = ahead_.get();
    if (ahead_of_ != nullptr) ahead_of_->begin(layer);
    start();
    return layer;
  }

 private:
  void start() {
    if (at_ == order_.size()) return;
    ahead_ = std::async(std::launch::async, [this, layer = order_[at_++]] {
      LayerTrace trace = read(layer);
      if (ahead_of_ != nullptr) ahead_of_->prefetch(trace);
      return trace;
    });
  }

  LayerTrace read(int layer) {
    const std::lock_guard lock(study_.file_access_);
    return study_.reader_.read_layer(layer);
  }

  Study& study_;
  PrefetchingBackend* ahead_of_;  ///< null if it needs no word of what comes
  std::vector<int> order_;
  size_t at_ = 0;
  std::future<LayerTrace> ahead_;
};

Study::Study(const TraceReader& reader, StudyOptions options, StudyHooks hooks)
    : reader_(reader), options_(std::move(options)), hooks_(std::move(hooks)),
      files_(std::make_unique<GuardedSideFiles>(reader, file_access_)) {
  const TraceInfo& info = reader.info();
  if (info.steps() == 0) {
    bad_data({.what = "nothing to replay",
              .where = info.path,
              .found = "no stored query at or after prompt_len",
              .expected = "queries of later steps"});
  }
  options_.records = without_doubles(std::move(options_.records),
                                     [](const Record& record) { return record.canonical(); });
  options_.budgets = without_doubles(std::move(options_.budgets), [&](const Budget& budget) {
    return budget.ratio(info.prompt_len);
  });
  options_.layers = replayed_layers(reader, options_.layers, hooks_.message);
  options_.metrics = variables_of(options_.metrics);
  measures_ = std::make_unique<StudyMeasures>(
      RunShape{info, options_, span_tokens(info, options_.span_complements)}, *files_,
      evaluated_steps(info.steps(), wo_steps()));
  std::vector<Record> records = options_.records;
  for (const Record& hidden : measures_->hidden_records()) records.push_back(hidden);
  records = without_doubles(std::move(records),
                            [](const Record& record) { return record.canonical(); });
  policies_ = std::make_unique<PolicyRun>(records, options_.budgets, info, options_.layers,
                                          options_.seed, *files_);
  periodic_ = std::make_unique<PeriodicPolicies>(*policies_, info, options_.layers, options_.seed,
                                                 *files_);
}

Study::~Study() = default;

void Study::check() const {
  policies_->check();
  measures_->check();
  periodic_->check();
  for (const Record& record : policies_->records()) {
    if (!chosen<Merge>(record.settings).needs_linear_logits()) continue;
    for (const int layer : options_.layers) {
      if (reader_.header(layer).softcap == 0) continue;
      bad_data({.what = "policy " + record.canonical() + " needs logits that are linear in the key",
                .where = fmt::format("{}, layer {}", reader_.info().path, layer),
                .found = fmt::format("softcap {}", reader_.header(layer).softcap),
                .expected = "layers without softcap",
                .hint = "merge=convex works there"});
    }
  }
}

bool Study::needs_survey() const { return policies_->needs_survey() || periodic_->needs_survey(); }

int64_t Study::wo_steps() const {
  if (options_.wo_steps) return *options_.wo_steps;
  return default_wo_steps(reader_.info(), reader_.header(options_.layers.front()).value_dim);
}

void Study::say_progress(const std::string& what) {
  const double done = passes_ == 0
                          ? 1
                          : static_cast<double>(passes_done_) / static_cast<double>(passes_);
  if (hooks_.progress) hooks_.progress(done, what);
}

/// Two passes where a record ranks across layers: the scores of all layers, then the replay.
Dataset Study::run(Backend& backend, LayerStore* store) {
  const size_t first = finished_layers(store);
  std::vector<int> order;
  if (needs_survey() && first < options_.layers.size()) order = layers_to_survey(store);
  const size_t to_survey = order.size();
  order.insert(order.end(), options_.layers.begin() + static_cast<ptrdiff_t>(first),
               options_.layers.end());
  // Reads the whole file once more: beside the work, so that both read it while it is in memory.
  auto digest = std::async(std::launch::async, [this] { reader_.digest(); });
  passes_ = static_cast<int64_t>(order.size());
  const int64_t all = static_cast<int64_t>(options_.layers.size()) * (needs_survey() ? 2 : 1);
  if (passes_ < all && hooks_.resumed) hooks_.resumed(all - passes_, all);

  Layers layers(*this, backend, order);
  for (size_t l = 0; l < to_survey; ++l) {
    say_progress(fmt::format("scores of layer {}", order[l]));
    survey(backend, layers.next());
    if (store != nullptr) {
      Archive finished;
      exchange_survey(order[l], finished);
      store->save(LayerPass::scores, order[l], finished.bytes());
    }
    ++passes_done_;
  }
  if (needs_survey() && first < options_.layers.size()) {
    const Stopwatch watch(times_.rank);
    policies_->finish_survey();
    periodic_->finish_survey();
  }
  for (size_t l = first; l < options_.layers.size(); ++l) {
    say_progress(fmt::format("layer {}", options_.layers[l]));
    const LayerTrace trace = layers.next();
    LayerWork work(trace, backend, options_.importance);
    if (auto known = surveyed_norms_.extract(trace.layer)) {
      work.set_projected_norms(std::move(known.mapped()));
    }
    run_layer(work, static_cast<int64_t>(l));
    if (store != nullptr) {
      Archive finished;
      exchange_layer(static_cast<int64_t>(l), finished);
      store->save(LayerPass::replay, options_.layers[l], finished.bytes());
    }
    ++passes_done_;
  }
  say_progress("");
  times_.score += policies_->scoring_seconds();
  times_.rank -= policies_->scoring_seconds();
  digest.get();
  Dataset results = measures_->finish();
  describe_run(results, reader_, options_, options_.records, backend,
               static_cast<int64_t>(measures_->run().projected_steps.size()));
  return results;
}

void Study::survey(Backend& backend, const LayerTrace& layer) {
  const Stopwatch watch(times_.rank);
  LayerWork work(layer, backend, options_.importance);
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
  if (options_.scope != Scope::all) {  // else of all tokens, by the replay itself
    const Stopwatch watch(times_.score);
    work.projected_norms(options_.importance);
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

}  // namespace kvsim
