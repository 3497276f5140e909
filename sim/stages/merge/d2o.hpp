#pragma once
#include <vector>

#include "sim/stages/merge/targets.hpp"

namespace kvsim {

/// D2O's threshold tau of one compression: the mean best cosine over heads and evicted entries at
/// the first one of a layer, from then on the mean of that and the tau before.
double d2o_threshold(const std::vector<std::vector<Target>>& targets, MergeMemory& memory);

}  // namespace kvsim
