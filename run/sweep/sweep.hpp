#pragma once
#include "analysis/best_setting.hpp"
#include "analysis/dataset.hpp"
#include "io/paper_table.hpp"
#include "run/study/study.hpp"

namespace kvsim {

/// Contents of a sweep file, with all grids expanded.
///
///   traces  = ["../sample.h5"]         # from the folder of this file
///   budgets = [0.1, 0.2, 512]          # as on the command line: a ratio, or tokens per KV head
///   seeds   = [0, 1]                   # default 0
///   [[policy]]
///   preset    = "restkv"
///   ema_alpha = [0.1, 0.3, 0.5]        # a list is an axis; the last key varies fastest
///   aws_beta  = [500, 2000]
///   zip       = ["smooth", "kernel"]   # axes that go along together instead of being crossed
struct SweepConfig {
  std::string path;
  std::vector<std::string> traces;
  std::vector<uint64_t> seeds;
  std::vector<int> layers;  ///< empty: all of each trace
  /// "FILE:LINE" of each trace and layer (as text) that the file names, for messages.
  std::map<std::string, std::string> places;
  /// Records, budgets and how to measure; layers, seed and the steps through W_O are left open.
  StudyOptions options;
};

/// Mistakes are usage errors that name file and line.
SweepConfig read_sweep_config(const std::string& path);
/// `path` is only named in messages.
SweepConfig parse_sweep_config(std::string_view text, const std::string& path);

/// One record on one trace with one seed, at all budgets: what is kept when it is finished. Its
/// cost beyond what its group shares is guessed from shapes alone, so that all machines agree on
/// the shares; good to a factor of about two.
struct SweepUnit {
  std::string key;     ///< names everything its numbers depend on
  double seconds = 0;  ///< on one thread
  int64_t bytes = 0;   ///< of the results
};

/// One results file: a trace with a seed.
struct SweepJob {
  const TraceReader* reader = nullptr;
  std::string name;              ///< of the results file, without .nc
  StudyOptions options;          ///< complete: every record of the sweep
  std::string id;                ///< names everything the whole file depends on
  std::vector<SweepUnit> units;  ///< one per record
  double shared_seconds = 0;     ///< reading and the full attention, once per group
};

/// Units of one job that are worked on together: the layer is read, and its attention with the full
/// cache computed, once for all of them. Groups follow from the sweep alone, whatever the shards
/// and whatever is finished, since the last bits of a number depend on them.
struct SweepGroup {
  size_t job = 0;
  std::vector<size_t> units;  ///< ascending
  double seconds = 0;
};

/// All work of a sweep, checked: every trace can serve every record.
class SweepPlan {
 public:
  using Message = std::function<void(const std::string&)>;
  explicit SweepPlan(const SweepConfig& config, const Message& message = nullptr);

  const std::vector<SweepJob>& jobs() const { return jobs_; }
  /// The groups of shard 1..`shards`: a disjoint share, balanced by cost, the same on every
  /// machine for the same `shards`.
  std::vector<SweepGroup> groups(int64_t shard, int64_t shards) const;
  /// Peak memory of working on a group, as far as shapes tell.
  int64_t memory(const SweepGroup& group) const;

 private:
  void add_job(const SweepConfig& config, const TraceReader& reader, uint64_t seed,
               const Message& message);
  void add_groups(size_t job, bool quantizing);

  std::vector<std::unique_ptr<TraceReader>> readers_;
  std::vector<SweepJob> jobs_;
  std::vector<SweepGroup> groups_;
};

/// How far a sweep is. Units that were there already are not counted.
struct SweepProgress {
  double units = 0;  ///< finished, the group in work by its share
  size_t all_units = 0;
  double cost = 0;  ///< of them, as estimated
  double all_cost = 0;
  std::string what;
};

struct SweepHooks {
  std::function<void(const std::string&)> message;
  std::function<void(const SweepProgress&)> progress;
};

/// Works on a share of a sweep: units that are missing, then one results file per trace and seed.
/// A finished unit is a results file of one policy, named by the unit's key. It is there complete
/// or not at all, whatever ends the program; sweeps with units in common share them.
class SweepRun {
 public:
  /// `folder` takes the results files and, in `units/`, the finished units. Shards may share it.
  SweepRun(const SweepPlan& plan, std::string folder, int64_t shard, int64_t shards);

  /// Makes the folders and refuses results files of other sweeps unless `overwrite`.
  void prepare(bool overwrite, const std::vector<std::string>& inputs) const;
  void run(Backend& backend, const std::string& command_line, const SweepHooks& hooks);

  const std::vector<SweepGroup>& groups() const { return groups_; }  ///< all of the share
  /// Finished in an earlier run, or in a results file that is complete.
  bool is_there(const SweepGroup& group, size_t unit) const;

  /// The results file of a job; a part of it when there are several shards.
  std::string target(const SweepJob& job) const;
  /// Jobs that have units in this share.
  std::set<size_t> jobs() const;

 private:
  void work(const SweepGroup& group, Backend& backend, const std::function<void(double)>& progress,
            const SweepHooks& hooks) const;
  void write_target(size_t job, Backend& backend, const std::string& command_line) const;
  std::string sweep_attribute(const SweepJob& job) const;
  std::string unit_path(const std::string& key) const;
  bool has_unit(const std::string& key) const;
  /// A unit that was damaged later is bad data; the message says how to get it anew.
  Dataset load_unit(const std::string& key) const;

  const SweepPlan& plan_;
  std::string folder_;
  int64_t shard_;
  int64_t shards_;
  std::vector<SweepGroup> groups_;
  std::set<size_t> complete_;  ///< jobs whose results file was there, e.g. merged from shards
};

/// Puts results that differ in their policies together. Everything else must agree.
class ResultsJoin {
 public:
  /// Policies of the whole in their order.
  explicit ResultsJoin(const std::vector<std::string>& policies);

  /// `name` is the file for messages. A policy that is not of the whole or came before, and
  /// coordinates that differ, are bad data; with `some` other policies of the part are left out.
  void add(const Dataset& part, const std::string& name, bool some = false);
  /// Policies that no part had.
  std::vector<std::string> missing() const;
  /// The whole, with the first part's attributes. A variable that only some parts have is undefined
  /// in the rest.
  Dataset finish();

 private:
  struct Policy {
    std::string name;
    std::string from = {};    ///< file that had it; empty: none yet
    std::string config = {};  ///< JSON
  };
  void begin(const Dataset& part);
  void add_variable(const Variable& variable, const std::vector<Policy*>& places,
                    const std::string& name);

  std::vector<Policy> policies_;
  Dataset shape_;  ///< dimensions and attributes only
  std::map<std::string, Variable> variables_;
};

/// Joins parts of one sweep's results file; `command_line` is added to the history. Missing and
/// doubled policies and parts of other sweeps are bad data.
Dataset merge_parts(const std::vector<std::string>& paths, const std::string& command_line);

/// One line of the table of best settings: of one preset at one budget by one criterion.
struct BestRow {
  std::string preset = {};
  size_t settings = 0;
  Criterion criterion = {};
  std::string budget = {};  ///< its label
  std::string record = {};  ///< the best; empty: no setting holds what the budget gives
  size_t off_budget = 0;  ///< settings that hold over a twentieth more or less, and are not ranked
  double held = kUndefined;  ///< what the best holds over what the budget gives, mean over traces
  BestSetting found = {};
  /// Of the settings that are not ranked the best where it holds what the budget gives, between its
  /// own budgets; its gain is over `record`. Empty: none holds less there and more here.
  std::string equal_bytes_record{};
  BestSetting equal_bytes{};
  size_t nowhere = 0;  ///< of `off_budget`, without such a place
};

struct BestTable {
  size_t traces = 0;
  std::vector<std::string> measured;  ///< measures that every results file has
  std::string stream_layers;          ///< of some results file: see stream_error_layers()
  std::vector<BestRow> rows;
  Provenance from;
};

/// Reads the results files of a finished sweep and judges by `measures`. Presets with one setting,
/// budgets that keep everything, and criteria that do not tell the settings apart are left out;
/// seeds of one trace are averaged.
BestTable best_settings(const SweepPlan& plan, const SweepRun& sweep,
                        const std::vector<std::string>& measures);

}  // namespace kvsim
