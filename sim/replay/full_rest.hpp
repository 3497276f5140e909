#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// What a query of the full cache sees beside some entries.
struct FullRest {
  double log_mass = 0;       ///< ln of the sum of exp(logit), the sink's included
  std::vector<double> mean;  ///< [dv] mean value by exp(logit); the sink has value 0
};

/// Summed over the entries themselves, so exact however little attention they have; 1 - a from
/// float32 attention is not, once a is near 1. `step`: number of the later step, from 0;
/// `without`: entries to leave out.
FullRest full_rest(const LayerTrace& layer, int head, int64_t step,
                   std::span<const uint32_t> without);

}  // namespace kvsim
