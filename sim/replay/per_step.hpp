#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/core/kept_sets.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Numbers of per-step choice for one record and budget over all T later steps.
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

/// schedule=per-step and reads (policies.md 12): at each later step t every owner has the entries
/// that score best at t, in whole blocks as `settings` say; the more recent first on ties. Scores
/// are those of the record's indicator, or importance at t, summed over the query heads it serves.
/// `kept` gives, for each budget, the places of each owner and which entries are guarded and kept
/// whatever their score. Results are per budget.
std::vector<PerStepResult> replay_per_step(LayerWork& work, const Settings& settings,
                                           const std::vector<std::shared_ptr<const KeptSets>>& kept,
                                           const PerStepInput& input);

}  // namespace kvsim
