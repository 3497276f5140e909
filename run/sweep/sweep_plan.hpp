#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "run/sweep/sweep_config.hpp"

namespace kvsim {

/// Cost of work, guessed from shapes alone, so that all machines agree on the shares; good to a
/// factor of about two.
struct SweepCost {
  double seconds = 0;  ///< on one thread
  int64_t bytes = 0;   ///< of the results
};

/// One record on one trace with one seed, at all budgets: what is kept when it is finished.
struct SweepUnit {
  size_t record = 0;  ///< among the job's options.records
  std::string key;    ///< names everything its numbers depend on
  SweepCost cost;     ///< beyond what its group shares
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
  SweepPlan(const SweepConfig& config, const StudyHooks& hooks);

  const std::vector<SweepJob>& jobs() const { return jobs_; }
  /// The groups of shard 1..`shards`: a disjoint share, balanced by cost, the same on every
  /// machine for the same `shards`.
  std::vector<SweepGroup> groups(int64_t shard, int64_t shards) const;
  /// Peak memory of working on a group, as far as shapes tell.
  int64_t memory(const SweepGroup& group) const;

 private:
  void add_trace(const SweepConfig& config, const std::string& path, const StudyHooks& hooks);
  void add_job(const SweepConfig& config, const TraceReader& reader, uint64_t seed,
               const StudyHooks& hooks);
  void add_groups(size_t job, bool quantizing);

  std::vector<std::unique_ptr<TraceReader>> readers_;
  std::vector<SweepJob> jobs_;
  std::vector<SweepGroup> groups_;
};

}  // namespace kvsim
