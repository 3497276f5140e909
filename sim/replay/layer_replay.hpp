#pragma once
#include <functional>
#include <vector>

#include "sim/replay/decode.hpp"
#include "sim/replay/periodic.hpp"
#include "sim/replay/prefill.hpp"

namespace kvsim {

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
  struct Split {
    Split(const LayerKept& kept, const std::vector<Record>& records);
    LayerKept prefill, decode, periodic;  ///< [record][budget], null where another loop replays
  };

  Split split_;
  PrefillReplay prefill_;
  DecodeReplay decode_;
  PeriodicReplay periodic_;
};

}  // namespace kvsim
