#pragma once
#include <memory>
#include <string>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/core/kept_sets.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/side_files.hpp"

namespace kvsim {

/// All policies of a run over all its layers: score, rank, allocate, select. The trace can serve
/// them: check_records() was asked (trace_check.hpp). Layers must be given in ascending order.
/// Records that rank across layers see every layer twice.
class PolicyRun {
 public:
  /// `layers`: those to be replayed (sliding-window layers already left out), ascending. `info`
  /// and `files` must outlive the run.
  PolicyRun(std::vector<Record> records, std::vector<Budget> budgets, const TraceInfo& info,
            std::vector<int> layers, uint64_t seed, const SideFiles& files);
  ~PolicyRun();

  const std::vector<Record>& records() const;
  const std::vector<Budget>& budgets() const;

  bool needs_survey() const;     ///< some record ranks or budgets across layers by its scores
  void survey(LayerWork& work);  ///< first pass over one layer
  void finish_survey();          ///< after the last layer of the first pass

  LayerKept select(LayerWork& work);  ///< second (or only) pass over one layer

  double scoring_seconds() const;  ///< of all layers so far; the rest of both passes ranks

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
