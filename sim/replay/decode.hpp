#pragma once
#include "sim/replay/prefill.hpp"

namespace kvsim {

class DecodeRun;
struct DecodeBlock;
struct DecodeSeries;

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
  std::vector<std::unique_ptr<DecodeRun>> start_runs();
  void read_block(int64_t first, int64_t steps, const Table<float>& importance,
                  DecodeBlock& block) const;
  RetainedSums sums_of(const DecodeBlock& full, const DecodeSeries& series) const;

  LayerWork& work_;
  PrefillOptions options_;
  std::vector<ReplayOutcome> outcomes_;
};

}  // namespace kvsim
