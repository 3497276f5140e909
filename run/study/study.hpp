#pragma once
#include <mutex>
#include <nlohmann/json_fwd.hpp>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "io/side_files.hpp"
#include "io/trace_reader.hpp"
#include "sim/backend/cuda_backend.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/policy/record.hpp"
#include "sim/replay/layer_replay.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {

/// Reader of a run's trace and of files that records name, by one thread at a time, as the
/// HDF5 library wants it: layers are read ahead while records ask for their files.
class TraceFiles : public SideFiles {
 public:
  /// The reader must outlive this.
  explicit TraceFiles(const TraceReader& trace) : trace_(trace) {}

  /// Layers are read with these probes from now on.
  void read_probes(std::set<int> probes) { probes_ = std::move(probes); }
  LayerTrace layer(int layer) const {
    const std::lock_guard lock(access_);
    return trace_.read_layer(layer, false, probes_);
  }
  Table<double> scores(const std::string& path, int layer, int64_t owners,
                       int64_t entries) const override {
    const std::lock_guard lock(access_);
    return read_scores(scores_file(path, trace_.info().path), layer, owners, entries);
  }
  Table<double> table(const std::string& path, int64_t rows, int64_t columns) const override {
    return read_table(path, rows, columns);
  }
  std::vector<std::string> token_text() const override {
    const std::lock_guard lock(access_);
    return trace_.token_text();
  }

 private:
  const TraceReader& trace_;
  std::set<int> probes_;
  mutable std::mutex access_;
};

/// Plan of a study: options and a trace put together, before any layer is read.
struct StudyPlan {
  StudyOptions options;           ///< no doubles; layers that are replayed; variables for metrics
  std::vector<SpanTokens> spans;  ///< of the results
  std::vector<Record> records;    ///< those of the options, then those replayed for measures only
  std::vector<int64_t> projected_steps;  ///< of the T later steps, those that go through W_O

  RunShape shape(const TraceInfo& info) const { return {info, options, spans}; }
};

/// Equal records, and budgets that keep the same share of the prompt, collapse to the first.
void take_doubles_out(StudyOptions& options, int64_t prompt_len);

/// Throws where the trace cannot serve the records: asked here and nowhere else, of what it holds;
/// no layer is read. `later`: what compressions after the first see, of a model that runs more
/// queries than the trace stores.
void check_served(const TraceReader& trace, const TraceInfo& later,
                  const std::vector<Record>& records, const std::vector<Budget>& budgets,
                  const std::vector<int>& layers);

/// Throws what a study would be refused for: see check_served(). Layers with a sliding window
/// shorter than the trace are left out and named to `message`.
StudyPlan plan_study(const TraceReader& trace, StudyOptions options,
                     const std::function<void(const std::string&)>& message = nullptr);

/// K of --wo-steps when the user gave none: all steps while projecting them costs at most a quarter
/// of a replay of usual size (or a fifth of a second), else fewer, but at least 16. Depends on the
/// shapes of the trace only, so that a record is measured at the same steps in every company.
int64_t default_wo_steps(const TraceInfo& info, int64_t value_dim);

class LayersAhead;
class StudyMeasures;

/// Seconds per phase of a run.
struct PhaseTimes {
  double read = 0;   ///< waiting for the trace; reading ahead overlaps the rest
  double score = 0;  ///< weights of the entries' values included
  double rank = 0;   ///< and allocate, and select
  double replay = 0;
  double flops = 0;    ///< of the fused replay's products: see PrefillReplay::flops
  double project = 0;  ///< through W_O
  double measure = 0;  ///< everything else that fills the results
};

struct StudyHooks {
  std::function<void(const std::string&)> message;  ///< whole sentences for the user
  /// done in [0, 1] of what there was to do
  std::function<void(double done, const std::string&)> progress;
};

/// One trace x policies x budgets: reads layer by layer, selects, replays and measures.
class Study {
 public:
  /// Everything that can be refused before any work is refused here: see plan_study(). `reader`
  /// must outlive the study.
  Study(const TraceReader& reader, StudyOptions options, StudyHooks hooks = {});
  ~Study();

  Dataset run(Backend& backend);
  const PhaseTimes& times() const { return times_; }

 private:
  bool needs_survey() const;
  void survey(LayersAhead& ahead, Backend& backend);
  void run_layer(LayerWork& work, int64_t layer);
  void say_progress(const std::string& what);

  const TraceReader& reader_;
  StudyHooks hooks_;
  TraceFiles files_;
  StudyPlan plan_;
  std::unique_ptr<StudyMeasures> measures_;
  std::unique_ptr<PolicyRun> policies_;  ///< of the user's records, then of those for measures
  std::unique_ptr<PeriodicPolicies> periodic_;    ///< the same records at later compressions
  std::map<int, ProjectedNorms> surveyed_norms_;  ///< by layer, until it is replayed
  int64_t surveyed_values_ = 0;                   ///< in all that were stored
  PhaseTimes times_;
  int64_t passes_done_ = 0;  ///< over one layer
  int64_t passes_ = 0;       ///< to be done
};

/// A line of the attribute `history`: the time, and the command.
std::string history_line(const std::string& command_line);

/// The forms in which bytes may be made equal: `flattened`, `padded`, `paged`, `in-place`
/// (metrics.md 9).
const std::vector<std::string>& byte_forms();

/// Attribute of results whose budgets are shares of bytes: the form.
inline constexpr const char* kEqualBytes = "equal_bytes";

/// Options without `equal_bytes` stay as they are. Else every record gets budgets of its own: at
/// each budget of `options`, a share of the prompt's full cache, the most entries with which it
/// holds no more bytes than that. The trace is scored a few times. Returns the records that hold
/// more with a single entry, and where.
std::vector<std::string> make_bytes_equal(const TraceReader& trace, Backend& backend,
                                          StudyOptions& options);

/// Something a trace may be enough for.
struct TraceUse {
  std::string name;  ///< e.g. "schedule=decode", or a preset
  bool served = false;
  std::string detail;  ///< how far it is served, or what is missing
};
struct TraceUses {
  std::string by;
  std::vector<TraceUse> uses;
};
/// All that `kvsim inspect` prints of it.
std::vector<TraceUses> trace_uses(const TraceReader& trace);

inline constexpr const char* kIdleSettings = "without_effect";

/// Settings that changed nothing in a replay, as the results show it: a budget at which a policy
/// that evicts evicted no entry; scores, where the window takes the whole budget; a stage
/// `quantize` that rounded none; layers of `skip_layers` that the model does not have. One line for
/// each policy, "POLICY at BUDGET, BUDGET: WHY"; lines end with '\n'. `records` [policy].
std::string idle_settings(const Dataset& results, const std::vector<Record>& records);

enum class OptionType { flag, count, real, word, names };

/// One option of how a study measures, declared once: its text in `--help`, its key in a sweep's
/// file, its part of what names a unit, and its entry in the results' `config`.
struct StudyOption {
  std::string key;               ///< of a sweep's file and of `config`, e.g. wo_steps
  std::string flag = {};         ///< on the command line, without dashes, e.g. wo-steps
  std::string placeholder = {};  ///< of its value there; empty for flags
  std::string meaning;           ///< in --help
  OptionType type = OptionType::flag;
  double low = 0;  ///< of counts and reals
  double high = 0;
  std::vector<std::string> words = {};            ///< of words
  std::vector<std::string> (*known)() = nullptr;  ///< names that there are; null: any

  bool (*is_set)(const StudyOptions&) = nullptr;  ///< null: always
  nlohmann::ordered_json (*read)(const StudyOptions&) = nullptr;
  /// A value that was checked: see set(). A word is given by its number among `words`.
  void (*set_number)(StudyOptions&, double) = nullptr;
  void (*add_name)(StudyOptions&, const std::string&) = nullptr;

  /// "a number in [0, 1]", "one of l1, l2", ...
  std::string expected() const;
  /// Sets a value of a document, of `names` one more; false where it is not as declared.
  bool set(StudyOptions& options, const nlohmann::ordered_json& value) const;
};

/// All of them, in the order of --help.
const std::vector<StudyOption>& study_options();

/// Values of the options, by key: all that a result depends on beside the records, in a form
/// that does not change with the order of typing. Those that are not set are left out.
nlohmann::ordered_json options_text(const StudyOptions& options);

/// How a results file was measured, from its `config`: what that lacks keeps its default.
StudyOptions options_of(const Dataset& results);

/// Throws (usage) where options that belong together are not given together; `where` asked.
void check_together(const StudyOptions& options, const std::string& where);

/// The version of results files that this program writes, and the latest that it reads:
/// results.md 5.
inline constexpr int64_t kResultsVersion = 1;
inline constexpr const char* kResultsVersionAttribute = "results_version";

/// A results file that a command may use without looking twice: written by kvsim, of no later
/// version, the axes of a replay there, and every variable that this program declares of the type
/// and over the dimensions that it declares. Anything else is bad data. Variables that it does not
/// know are kept as they are.
Dataset read_known_results(const std::string& path);

/// Does it for results that were read already.
void check_known_results(const Dataset& results, const std::string& path);

/// The attribute `axes` of results: {"PRESET[:VARIANT]": [{"keys", "values", "default"}]}, the axes
/// of the grid that the records of each preset make: one for all keys that go along with each
/// other, as with `zip`, and none for a key that another one decides. Rows of `values` have one
/// text per key and come in the order of the records; `default` are the preset's own.
std::string grid_axes_json(const std::vector<Record>& records);

}  // namespace kvsim
