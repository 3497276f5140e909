#pragma once
#include <deque>

#include "sim/policy/policy_run.hpp"
#include "sim/replay/prefill.hpp"

namespace kvsim {

/// schedule=decode: the budget is held at every step (policies.md 12). A replay of T steps costs
/// O(T * B) per record and budget, beside one pass over the full cache that all share.
class DecodeReplay {
 public:
  /// `kept` is [record][budget], null where another loop replays the cell; everything given must
  /// outlive the replay.
  DecodeReplay(LayerWork& work, const LayerKept& kept, const std::vector<Record>& records,
               const PrefillOptions& options);

  const std::vector<ReplayOutcome>& outcomes() const { return outcomes_; }
  /// Calls `sink` with blocks of steps in ascending order, without the full cache's own numbers.
  void run(const std::function<void(const StepBlock&)>& sink);

 private:
  LayerWork& work_;
  PrefillOptions options_;
  std::vector<ReplayOutcome> outcomes_;
};

/// One stretch of a periodic record: from a compression to the next.
struct Epoch {
  TraceInfo seen;                       ///< the trace as the policy sees it: the prompt ends at t_k
  TraceInfo replayed;                   ///< the same with the queries before t_{k+1} only
  int64_t first_step = 0;               ///< of the T later steps
  int64_t end = 0;                      ///< position of the next compression
  std::unique_ptr<PolicyRun> policies;  ///< null at t_0, which is the run's own prompt
};

/// The policies of all records with schedule=periodic at all their compressions (policies.md 12):
/// at t_k = n + k * period the full cache is restored and compressed as a prompt of t_k entries,
/// with the same B. Layers must be given in ascending order.
class PeriodicPolicies {
 public:
  /// `first` is the run at t_0 = n; everything given must outlive this.
  PeriodicPolicies(const PolicyRun& first, const TraceInfo& info, const std::vector<int>& layers,
                   uint64_t seed, const SideFiles& files);

  struct Planned {
    size_t record = 0;  ///< its number in the run
    std::deque<Epoch> epochs;
  };
  std::deque<Planned>& planned() { return planned_; }

  bool needs_survey() const;
  void survey(const LayerTrace& layer, Backend& backend);
  void finish_survey();

 private:
  std::deque<Planned> planned_;
};

/// check_records() of every compression after the first. The trace serves the first.
void check_compressions(const std::vector<Record>& records, const std::vector<Budget>& budgets,
                        const TraceInfo& info, const std::vector<int>& layers,
                        const SideFiles& files);

/// schedule=periodic: every epoch is a prefill replay of its own steps.
class PeriodicReplay {
 public:
  /// `kept` is what the run keeps at t_0, [record][budget], null where another loop replays.
  PeriodicReplay(LayerWork& work, PeriodicPolicies& policies, const LayerKept& kept,
                 const std::vector<Record>& records, const PrefillOptions& options);

  const std::vector<ReplayOutcome>& outcomes() const { return outcomes_; }
  /// One epoch that was replayed: its prompt, its outcomes (cells count records from 0), the
  /// record's number in the run, and the first of the T later steps that it serves.
  using EpochSink = std::function<void(LayerWork& work, const PrefillReplay& replay, size_t record,
                                       int64_t first_step)>;
  /// Calls `sink` with blocks of steps, without the full cache's own numbers, and `epochs`, when
  /// given, after each epoch.
  void run(const std::function<void(const StepBlock&)>& sink, const EpochSink& epochs = nullptr);

 private:
  void replay_epoch(const PeriodicPolicies::Planned& planned, Epoch& epoch,
                    const PrefillOptions& options,
                    const std::function<void(const StepBlock&)>& sink, const EpochSink& epochs);
  void note(const ReplayOutcome& seen, ReplayOutcome& outcome, const Epoch& epoch) const;

  LayerWork& work_;
  PeriodicPolicies& policies_;
  const LayerKept& kept_;
  const std::vector<Record>& records_;
  PrefillOptions options_;
  std::vector<ReplayOutcome> outcomes_;
  std::vector<std::vector<int>> number_;  ///< [record][budget] of the outcome, or -1
};

/// All policies of a run on one layer, each by the loop of its schedule. Outcomes are numbered
/// through: those of the prefill loop first.
class LayerReplay {
 public:
  /// Everything given must outlive the replay.
  LayerReplay(LayerWork& work, PeriodicPolicies& periodic, const LayerKept& kept,
              const std::vector<Record>& records, const PrefillOptions& options);

  const PrefillReplay& prefill() const { return prefill_; }
  size_t count() const {
    return prefill_.outcomes().size() + decode_.outcomes().size() + periodic_.outcomes().size();
  }
  const ReplayOutcome& outcome(size_t number) const;
  /// The first blocks cover all steps, in order, and carry the full cache.
  /// `epochs`, when given, is called after each stretch of a periodic record.
  void run(const std::function<void(const StepBlock&)>& sink,
           const PeriodicReplay::EpochSink& epochs = nullptr);

 private:
  /// [record][budget], null where another loop replays.
  static LayerKept cells(const LayerKept& kept, const std::vector<Record>& records, bool decode,
                         bool repeat);

  PrefillReplay prefill_;
  DecodeReplay decode_;
  LayerKept of_periodic_;
  PeriodicReplay periodic_;
};

}  // namespace kvsim
