#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/core/kept_sets.hpp"

namespace kvsim {

/// What per-step choice gives for one record and budget over all T later steps.
struct PerStepResult {
  Table<double> kept_attention;   ///< [Hq][T]
  Table<double> kept_importance;  ///< [Hq][T]
  Table<double> kept_squares;     ///< [Hq][T] sum of squared importance
  Table<double> part_kept;        ///< [parts][T] importance kept of each part, over query heads
  std::vector<float> delta;       ///< [Hq][T][dv] z^ - z
  KeptSets last;                  ///< the sets of the last step
};

struct PerStepInput {
  const float* importance = nullptr;  ///< [Hq][stride], stride >= n
  int64_t stride = 0;
  const std::vector<float>* z = nullptr;  ///< [Hq][T][dv] outputs of the full cache
  bool leave_out_guarded = false;         ///< sums without guarded entries (--scope evictable)
  std::vector<std::vector<Range>> parts;  ///< of the prompt, for part_kept
};

/// schedule=per-step (oracle-step, metrics.md 7): at each later step t every owner keeps the
/// entries of largest importance at t, summed over the query heads it serves; more recent first on
/// ties.
/// `kept` gives, for each budget, how many entries each owner keeps (the sizes of its sets) and
/// which are guarded and kept whatever their importance. Results are per budget.
std::vector<PerStepResult> replay_per_step(LayerWork& work,
                                           const std::vector<std::shared_ptr<const KeptSets>>& kept,
                                           const PerStepInput& input);

}  // namespace kvsim
