#pragma once
#include <memory>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/policy/score_plan.hpp"
#include "sim/stages/side_files.hpp"

namespace kvsim {

/// Runs the scoring stages of all plans over one layer. Plans that observe with the same queries
/// share one pass over the attention. One result for each plan and variant.
std::vector<std::vector<std::shared_ptr<ScoredLayer>>> score_layer(
    LayerWork& work, const SideFiles& files, uint64_t seed,
    const std::vector<const ScorePlan*>& plans);

}  // namespace kvsim
