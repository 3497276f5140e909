#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "run/sweep/sweep_plan.hpp"
#include "run/sweep/sweep_store.hpp"

namespace kvsim {

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
class SweepRun {
 public:
  /// `folder` takes the results files and, in `units/`, the finished units. Shards may share it.
  SweepRun(const SweepPlan& plan, std::string folder, int64_t shard, int64_t shards);

  /// Makes the folders and refuses results files of other sweeps unless `overwrite`.
  void prepare(bool overwrite, const std::vector<std::string>& inputs) const;
  void run(Backend& backend, const std::string& command_line, const SweepHooks& hooks);

  const std::vector<SweepGroup>& groups() const { return groups_; }  ///< all of the share
  size_t units() const;
  /// Finished in an earlier run, or in a results file that is complete.
  bool is_there(const SweepGroup& group, size_t unit) const;

  /// The results file of a job; a part of it when there are several shards.
  std::string target(const SweepJob& job) const;
  /// Jobs that have units in this share.
  std::vector<size_t> jobs() const;

 private:
  std::vector<size_t> missing(const SweepGroup& group) const;
  void work(const SweepGroup& group, Backend& backend, const std::function<void(double)>& progress,
            const SweepHooks& hooks) const;
  std::vector<size_t> units_of(size_t job) const;
  void write_target(size_t job, Backend& backend, const std::string& command_line) const;
  std::string sweep_attribute(const SweepJob& job) const;

  const SweepPlan& plan_;
  std::string folder_;
  int64_t shard_;
  int64_t shards_;
  std::vector<SweepGroup> groups_;
  SweepStore store_;
  std::set<size_t> complete_;  ///< jobs whose results file was there, e.g. merged from shards
};

/// Joins parts of one sweep's results file; `command_line` is added to the history. Missing and
/// doubled policies and parts of other sweeps are bad data.
Dataset merge_parts(const std::vector<std::string>& paths, const std::string& command_line);

}  // namespace kvsim
