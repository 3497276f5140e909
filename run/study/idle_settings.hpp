#pragma once
#include <string>
#include <vector>

#include "analysis/dataset.hpp"
#include "sim/policy/record.hpp"

namespace kvsim {

/// The attribute that holds idle_settings().
inline constexpr const char* kIdleSettings = "without_effect";

/// Settings that changed nothing in a replay, as the results show it: a budget at which a policy
/// that evicts evicted no entry; scores, where the window takes the whole budget; a stage
/// `quantize` that rounded none; layers of `skip_layers` that the model does not have. One line for
/// each policy, "POLICY at BUDGET, BUDGET: WHY"; lines end with '\n'. `records` [policy].
std::string idle_settings(const Dataset& results, const std::vector<Record>& records);

}  // namespace kvsim
