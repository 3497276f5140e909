#pragma once
#include <cstdint>
#include <vector>

#include "sim/core/layer_trace.hpp"

/// What replaying a compressed prompt means, in float64 and one step at a time.
namespace kvsim::reference {

/// One kept set at one later step.
struct StepMeasures {
  double retained_importance = 0;  ///< scope prompt, L1
  double retained_attention = 0;
  double output_error = 0;                ///< relative, of the layer
  std::vector<double> output_error_head;  ///< [Hq]
};

/// The step of one stored query. Owners are KV heads or query heads, as in KeptSets.
StepMeasures replay_step(const LayerTrace& layer, const std::vector<std::vector<uint32_t>>& owners,
                         bool per_query_head, int64_t row);

/// All later steps.
std::vector<StepMeasures> replay(const LayerTrace& layer,
                                 const std::vector<std::vector<uint32_t>>& owners,
                                 bool per_query_head);

}  // namespace kvsim::reference
