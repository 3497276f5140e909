#pragma once
#include "analysis/dataset.hpp"
#include "sim/policy/record.hpp"
#include "sim/replay/layer_replay.hpp"
#include "sim/replay/prefill.hpp"

namespace kvsim {

/// Which layers the stream error of a results file is of, e.g. "8 of the model's 30 layers"; empty
/// when it is of all of them, or was not measured.
std::string stream_error_layers(const Dataset& results);

struct OutputRows;
class StreamChange;

/// Norms of what each outcome of a layer's replay changes of what the layer adds to the residual
/// stream, at some of the T later steps: NaN elsewhere. All vectors of a block of steps are
/// projected at once; where more than W_O stands before the stream, StreamChange makes them.
class OutputNorms {
 public:
  /// `steps`: indices of those that are wanted, ascending. `heads`: every query head by itself,
  /// too, at all steps; `rounding`: what quantising adds, too.
  OutputNorms(LayerWork& work, size_t outcomes, std::vector<int64_t> steps, bool heads,
              bool rounding);
  ~OutputNorms();

  void add(const StepBlock& block);

  const std::vector<double>& full() const { return full_; }        ///< [T] of the full cache
  const Table<double>& full_heads() const { return full_heads_; }  ///< [Hq][T]
  const std::vector<double>& error(size_t outcome) const { return outcomes_[outcome].error; }
  const Table<double>& error_heads(size_t outcome) const { return outcomes_[outcome].heads; }
  const std::vector<double>& rounding(size_t outcome) const { return outcomes_[outcome].rounding; }
  double seconds() const { return seconds_; }  ///< spent in add()

 private:
  struct Outcome {
    std::vector<double> error;     ///< [T]
    Table<double> heads;           ///< [Hq][T], or empty
    std::vector<double> rounding;  ///< [T], or empty
  };
  OutputRows projected(const StepBlock& block) const;
  void add_errors(const StepBlock& block, const std::vector<const float*>& inputs,
                  const OutputRows& there);
  void add_rounding(const StepBlock& block, const OutputRows& there);
  void add_heads(const StepBlock& block, std::vector<const float*> inputs);
  std::vector<double> norms_of_rows(const std::vector<const float*>& inputs,
                                    const OutputRows& there);
  std::vector<double> norms_of(const std::vector<std::vector<float>>& vectors,
                               const OutputRows& there);
  std::vector<double> changed_norms(const StepBlock& block, const OutputRows& there);
  std::vector<double> rounding_norms(const OutcomeBlock& view, const OutputRows& there);
  Outcome& of(const OutcomeBlock& view) { return outcomes_[view.outcome]; }

  LayerWork& work_;
  std::unique_ptr<StreamChange> change_;  ///< null: a product with W_O is all there is
  std::vector<int64_t> steps_;
  bool heads_;
  bool rounding_;
  std::unique_ptr<Projection> projection_;
  std::vector<double> full_;
  Table<double> full_heads_;
  std::vector<Outcome> outcomes_;
  double seconds_ = 0;
};

/// Records to replay, and variables to measure.
struct StudyOptions {
  std::vector<Record> records;  ///< typed order; equal ones collapse
  std::vector<Budget> budgets;  ///< typed order; equal ones collapse
  std::vector<int> layers;      ///< ascending
  uint64_t seed = 0;

  Scope scope = Scope::prompt;
  Norm importance = Norm::l1;
  double outlier = 0.5;
  std::optional<int64_t> wo_steps;  ///< 0: all; not set: by shapes
  int64_t horizon = 1;              ///< steps ahead that score estimates predict
  std::set<std::string> metrics;    ///< variables on request
  std::vector<std::string> span_complements;
  bool per_head = false;
  bool save_keep = false;

  int64_t element_bytes = 2;
  std::string equal_bytes;  ///< a form of a cache (equal_bytes.hpp); else budgets count entries
  std::optional<double> bandwidth;  ///< bytes/s
  std::optional<double> peak;       ///< flop/s

  std::string command_line;  ///< for `history`
};

/// Kept entries of one head, ascending.
using KeptEntries = std::vector<uint32_t>;

/// The prompt tokens that one entry of the dimension `span` stands for.
struct SpanTokens {
  std::string name;
  std::vector<Range> ranges;  ///< disjoint, ascending
  bool labelled = true;       ///< a span of the trace, not a complement

  int64_t tokens() const;
};

/// The spans of a trace, then `!NAME` for each name of `complements`: the prompt tokens outside
/// NAME. An unknown name is bad data.
std::vector<SpanTokens> span_tokens(const TraceInfo& info,
                                    const std::vector<std::string>& complements);

/// Share of the span's tokens that one head kept; NaN for an empty span.
double keep_rate_of_head(const KeptEntries& kept, const SpanTokens& span);

/// Mean of keep_rate_of_head over the heads (metrics.md 4).
double keep_rate(const std::vector<KeptEntries>& heads, const SpanTokens& span);

/// Share of all entries of the layer that is kept: what every span would have if eviction did not
/// look at spans.
double unbiased_rate(const std::vector<KeptEntries>& heads, int64_t prompt_len);

/// Largest minus smallest keep rate over the labelled spans; `rates` belong to `spans`.
double bias_spread(std::span<const double> rates, const std::vector<SpanTokens>& spans);

/// A measure stands in one file of this folder: it declares its variables, says what it needs, sees
/// what the study reads and replays, and writes rows of the results. It registers itself; nothing
/// else is edited. CONTRIBUTING.md has one in full.

/// Facts that decide which variables a run writes, and over which dimensions.
struct RunShape {
  const TraceInfo& info;
  const StudyOptions& options;    ///< records of the results; the variables that were asked for
  std::vector<SpanTokens> spans;  ///< of the results
};

/// Something that holds for some runs and not for others.
struct Condition {
  const char* text;  ///< for docs/results.md
  bool (*holds)(const RunShape& run);
};

extern const Condition kAlways, kResidualNorm, kSpans, kPerHead, kSaveKeep, kQueryHeads, kQuantizes,
    kMerges;

// Notes of a variable behind name, dimensions, unit, name in words and definition.

/// All must hold, or the variable is not written even when it is asked for.
struct Needs : std::vector<const Condition*> {
  using vector::vector;
};
/// Makes the run write it unasked; without it a variable is written on request only.
struct When {
  const Condition* condition;
};
struct Flags : std::vector<FlagMeaning> {
  using vector::vector;
};
/// A record that is replayed beside the run's, but not shown.
struct Beside {
  const char* record;
};
/// Values that are known before anything is measured: of coordinates, and what describes them.
struct Known {
  VariableValues (*values)(const RunShape& run);
};

// Dimensions that many variables stand over.
inline constexpr const char* kOverLayers = "policy budget layer";
inline constexpr const char* kOverSteps = "policy budget layer step";
inline constexpr const char* kOverHeadSteps = "policy budget layer head step";

/// One variable of a results file, a row of its measure's table. Files, docs/results.md, joins and
/// `--metric` read the declarations and nothing else. Dimensions are separated by blanks; one that
/// is the variable's own name makes it a coordinate, which is written when some variable stands
/// over it, of the same file or another's.
struct VariableDeclaration {
  const char* name;
  const char* dims;
  const char* units;
  const char* long_name;
  const char* definition;  ///< how the number is computed; Markdown
  VariableType type = VariableType::float64;
  Needs needs = {};
  const Condition* when = nullptr;
  Flags flags = {};
  const char* beside = "";
  VariableValues (*known)(const RunShape& run) = nullptr;
  /// Names that `--metric` takes for all variables of a measure; any of them asks for all. Filled
  /// in by the measure.
  std::vector<std::string> measures = {};

  template <class... Notes>
  VariableDeclaration(const char* variable, const char* over, const char* unit, const char* words,
                      const char* meaning, Notes... notes)
      : name(variable), dims(over), units(unit), long_name(words), definition(meaning) {
    (note(std::move(notes)), ...);
  }
  std::vector<std::string> dim_names() const;
  bool is_coordinate() const { return std::string_view(dims) == name; }

 private:
  void note(VariableType is) { type = is; }
  void note(Needs all) { needs = std::move(all); }
  void note(When is) { when = is.condition; }
  void note(Flags all) { flags = std::move(all); }
  void note(Beside is) { beside = is.record; }
  void note(Known is) { known = is.values; }
};

/// Facts of a run that a measure may know before any layer is read. All of it outlives the measure.
struct MeasureRun : RunShape {
  const SideFiles& files;
  std::vector<int64_t> projected_steps;  ///< those of the T later steps whose output is compared
};

/// Work that the study does for a measure beyond replaying the run's records.
struct MeasureNeeds {
  /// Columns of the full cache's attention at the later steps: n for the prompt's entries, N for
  /// everything visible, 0 for no rows at all. Rows may be wider than asked for. Each layer's are
  /// read once for all measures.
  int64_t attention_columns = 0;
  bool head_norms = false;      ///< of output errors, every head by itself
  bool rounding_norms = false;  ///< of what quantising adds to the output
  bool span_parts = false;      ///< importance within each span of the results
  bool slot_changes = false;    ///< what merged slots change of the output
  bool pairs = false;           ///< slots of exactly two entries
  bool epochs = false;          ///< every stretch of a periodic record: see_epoch()
};

struct MeasuredLayer {
  LayerWork& work;
  int64_t index = 0;  ///< along the dimension `layer`
  const LayerReplay& replay;
  const std::vector<Record>& records;  ///< all that were replayed, those of the results first
  size_t shown = 0;                    ///< records in the results
  const OutputNorms& norms;

  /// visit(cell, number of its outcome) for every policy in the results at every budget.
  template <class Visit>
  void for_each_cell(Visit visit) const {
    for (size_t o = 0; o < replay.count(); ++o)
      for (const ReplayCell cell : replay.outcome(o).cells)
        if (cell.record < static_cast<int>(shown)) visit(cell, o);
  }
  /// Outcomes of a record that was replayed, by budget.
  std::map<int, size_t> outcomes_of(const Record& record) const;
  /// Norms [T] of the residual stream that enters the layer at the later steps; the trace has them.
  std::vector<double> stream_norms() const;
};

/// One stretch of a periodic record, replayed as a prompt of its own.
struct MeasuredEpoch {
  LayerWork& prompt;
  int64_t index = 0;            ///< of the layer
  const PrefillReplay& replay;  ///< cells count records from 0
  int record = 0;               ///< in the results
  int64_t first_step = 0;       ///< the first of the T later steps that it serves
};

/// Where measures write, by the names of their variables. What a run does not write is passed over
/// by set() and copy(); a name that nobody declares throws.
class MeasureResults {
 public:
  explicit MeasureResults(Dataset& dataset) : dataset_(dataset) {}

  bool has(const char* variable) const;
  int64_t size(const char* dimension) const { return dataset_.size(dimension); }
  void set(const char* variable, std::initializer_list<int64_t> index, double value) {
    if (has(variable)) row(variable, index)[0] = value;
  }
  /// Fills the values at fixed indices of the leading dimensions, from the `first` one on.
  void copy(const char* variable, std::initializer_list<int64_t> leading,
            std::span<const double> values, int64_t first = 0) {
    if (!has(variable)) return;
    std::ranges::copy(values, row(variable, leading).subspan(first).begin());
  }
  /// The values at fixed indices of the leading dimensions; of a variable that is written.
  template <class T = double>
  std::span<T> row(const char* variable, std::initializer_list<int64_t> leading) {
    return dataset_.row<T>(variable, leading);
  }

 private:
  Dataset& dataset_;
};

/// Sums over query heads of a table [Hq][steps].
std::vector<double> over_heads(const Table<double>& heads);

/// Numbers of one study. Made once if any of its variables is written, then called layer by layer:
/// start, see_full and see and see_epoch while the layer is replayed, start_rows and see_rows while
/// the full cache's attention is read once more, finish.
class Measure {
 public:
  explicit Measure(const MeasureRun& run) : run_(run) {}
  virtual ~Measure() = default;

  virtual MeasureNeeds needs() const { return {}; }

  virtual void start(const MeasuredLayer& /*layer*/) {}
  /// The full cache at some steps; all steps in order, once.
  virtual void see_full(const ReplayBlock& /*block*/) {}
  /// One outcome at some steps; all steps of an outcome in order, once. Different outcomes come
  /// side by side.
  virtual void see(const StepBlock& /*block*/, const OutcomeBlock& /*outcome*/) {}
  virtual void see_epoch(const MeasuredEpoch& /*epoch*/, MeasureResults& /*results*/) {}

  virtual void start_rows(const MeasuredLayer& /*layer*/) {}
  /// Rows of the later steps, every KV head's in order; row r is step `first_step` + r.
  virtual void see_rows(const AttentionBlock& /*rows*/, int64_t /*first_step*/) {}

  /// The layer is done: writes its rows.
  virtual void finish(const MeasuredLayer& /*layer*/, MeasureResults& /*results*/) {}
  /// All layers are done: writes what has no layer.
  virtual void finish_run(MeasureResults& /*results*/) {}

 protected:
  const MeasureRun& run() const { return run_; }
  /// [rows][T]: NaN where a step is not seen.
  Table<double> series(int64_t rows) const { return {rows, run_.info.steps(), kUndefined}; }

 private:
  const MeasureRun& run_;
};

struct MeasureInfo {
  const char* name;
  int place;           ///< order of measures in results files and in docs/results.md
  bool whole = false;  ///< `--metric NAME` asks for all of its variables, and so does any of them
  const Condition* when = nullptr;  ///< of all of its variables
  /// Records whose observing queries it reads, at half of the cache; a trace that lacks them is
  /// refused before any work.
  std::vector<std::string> (*observes)() = nullptr;
};

/// Makes variables known, in the order of the results file, and what measures them.
class DeclareMeasure {
 public:
  using Make = std::unique_ptr<Measure> (*)(const MeasureRun& run);
  DeclareMeasure(MeasureInfo about, std::vector<VariableDeclaration> declared, Make make = nullptr);
  DeclareMeasure(const DeclareMeasure&) = delete;
  DeclareMeasure& operator=(const DeclareMeasure&) = delete;

  const MeasureInfo info;
  const Make make;  ///< null: all values are known before anything is measured
  std::vector<VariableDeclaration> variables;
};

/// A measure makes itself known in its own file and namespace:
///     const RegisterMeasure<Locality> register_locality({.name = "locality", .place = 540},
///                                                       {{...}, ...});
template <class Implementation>
struct RegisterMeasure : DeclareMeasure {
  RegisterMeasure(MeasureInfo about, std::vector<VariableDeclaration> declared)
      : DeclareMeasure(about, std::move(declared),
                       [](const MeasureRun& run) -> std::unique_ptr<Measure> {
                         return std::make_unique<Implementation>(run);
                       }) {}
};

/// All of them, by place.
const std::vector<const DeclareMeasure*>& declared_measures();

/// All variables, coordinates first, then measure by measure.
const std::vector<VariableDeclaration>& declared_variables();
const VariableDeclaration& declared(std::string_view name);

/// Names that `--metric` adds variables for: measures, and variables of none.
std::vector<std::string> metrics_on_request();
/// Every name that `--metric` takes: those, and all variables.
std::vector<std::string> known_metrics();

/// The variables of these metrics: a measure, or one of its variables, stands for all of them.
std::set<std::string> variables_of(const std::set<std::string>& metrics);

/// Is this variable written in a run whose options ask for variables by name?
bool is_written(const VariableDeclaration& variable, const RunShape& run);

/// Variables that some record of the run brings along: written unasked, but not in every run.
std::set<std::string> variables_brought(const RunShape& run);

/// "float64", "string", ...
const char* type_text(VariableType type);

/// A variable as declared over the dimensions of the dataset, filled with "undefined": NaN for
/// reals, 255 for flags, 0 for integers.
Variable make_variable(const VariableDeclaration& declaration, const Dataset& dataset);

/// Every variable with name, dimensions, type, unit, meaning, definition and when it is written.
std::string variables_json();
/// The text of docs/results.md.
std::string variables_markdown();

}  // namespace kvsim
