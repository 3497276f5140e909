#pragma once
#include <memory>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/stages/scored_layer.hpp"
#include "sim/stages/settings.hpp"
#include "sim/stages/side_files.hpp"

namespace kvsim {

/// One record's scores of one layer. Records with equal scoring stages share a job.
struct ScoreJob {
  const Settings* settings = nullptr;
  std::vector<Segment> segments;
  /// K = max(B - m, 0) of each variant, for smoothing that follows the drift of the K best; one
  /// variant for every other record.
  std::vector<int64_t> free_slots = {0};
  bool wants_unweighted = false;
  bool wants_statistic = false;
  std::vector<std::shared_ptr<ScoredLayer>> results;  ///< per variant
};

/// Runs the scoring stages of all jobs over one layer (policies.md 4: queries to normalize). Jobs
/// that observe with the same queries share one pass over the attention.
void score_layer(LayerWork& work, const SideFiles& files, uint64_t seed,
                 std::span<ScoreJob* const> jobs);

}  // namespace kvsim
