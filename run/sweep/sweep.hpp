#pragma once
#include "analysis/best_setting.hpp"
#include "io/paper_table.hpp"
#include "run/study/study.hpp"

namespace kvsim {

/// Contents of a sweep file (cli.md 5), with all grids expanded.
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

/// Throws the error of what a sweep file asked for with its `place` there, "FILE:LINE".
[[noreturn]] void rethrow_at(const std::string& place, const Error& error);

/// Records of one job that are worked on and kept together: the layer is read, and its attention
/// with the full cache computed, once for all of them. Groups follow from the sweep alone, whatever
/// the shards and whatever is finished, since the last bits of a number depend on them.
struct SweepGroup {
  std::vector<size_t> units = {};  ///< records, ascending
  double seconds = 0;              ///< on one thread
  int64_t memory = 0;              ///< peak of working on it in bytes, as far as shapes tell
  /// Results file of it when it is finished, whose name is a digest of all its numbers depend on.
  std::string path = {};
  bool there = false;  ///< finished, or in a results file that is complete
};

/// One results file, or a shard's part of it: a trace with a seed.
struct SweepJob {
  const TraceReader* reader = nullptr;
  std::string name = {};                ///< of the results file, without .nc
  StudyOptions options = {};            ///< complete: every record of the sweep
  std::vector<double> seconds = {};     ///< [record]: on one thread, beyond what groups share
  std::vector<SweepGroup> groups = {};  ///< of the share
  std::string path = {};                ///< of the results file
  std::string sweep = {};  ///< its attribute: what it is a part of, by all that it depends on
  bool there = false;      ///< complete, e.g. merged from shards
};

/// A sweep, checked: every trace can serve every record. A finished group is there complete or not
/// at all, whatever ends the program; sweeps in one folder share what they have in common.
class SweepPlan {
 public:
  /// The work of shard 1..`shards`: a disjoint share of the groups, balanced by cost, the same on
  /// every machine for the same `shards`. `folder` takes the results files and, in `units/`, the
  /// finished groups; shards may have one folder.
  explicit SweepPlan(const SweepConfig& config,
                     const std::function<void(const std::string&)>& message = nullptr,
                     const std::string& folder = "", int64_t shard = 1, int64_t shards = 1);

  const std::vector<SweepJob>& jobs() const { return jobs_; }  ///< those with groups of the share
  /// Works on the groups that are missing, then writes the results files that are not there.
  void run(Backend& backend, const std::string& command_line, const StudyHooks& hooks) const;

 private:
  std::filesystem::path units_;
  std::vector<std::unique_ptr<TraceReader>> readers_;
  std::vector<SweepJob> jobs_;
};

/// Puts results files that differ in their policies together; `policies` of the whole in their
/// order. It has the first file's attributes; a variable that only some have is undefined in the
/// rest. Policies that are not of the whole, there twice or missing, and files that differ in
/// anything else are bad data.
Dataset join_results(const std::vector<std::string>& policies,
                     const std::vector<std::string>& paths);

/// Joins parts of one sweep's results file; `command_line` is added to the history.
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
  std::string stream_layers = {};     ///< of some results file: see stream_error_layers()
  std::vector<BestRow> rows = {};
  Provenance from = {};
};

/// Reads the results files of a finished sweep and judges by `measures`. Presets with one setting,
/// budgets that keep everything, and criteria that do not tell the settings apart are left out;
/// seeds of one trace are averaged.
BestTable best_settings(const SweepPlan& plan, const std::vector<std::string>& measures);

}  // namespace kvsim
