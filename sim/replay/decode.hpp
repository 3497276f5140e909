#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "sim/replay/decode_run.hpp"
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
  void start_runs(std::vector<std::unique_ptr<DecodeRun>>& runs);
  void read_block(int64_t first, int64_t steps, const Table<float>& importance,
                  DecodeBlock& block) const;
  /// What the view of a run points to.
  struct RunView {
    Table<double> kept_attention, kept_importance, total_attention, total_importance;
    Table<double> kept_squares, total_squares, part_kept, part_total;
    std::vector<double> entries;
  };
  OutcomeBlock view_of(const DecodeBlock& full, const DecodeSeries& series, size_t run,
                       RunView& sums) const;

  LayerWork& work_;
  PrefillOptions options_;
  std::vector<ReplayOutcome> outcomes_;
};

}  // namespace kvsim
