#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/backend/backend.hpp"

namespace kvsim {

/// What some queries of one head of the full cache see beside some entries.
struct RestAttention {
  std::vector<double> log_mass;  ///< [queries] ln of the sum of exp(logit), sink included; or -inf
  Table<double> mean;            ///< [queries][dv] by exp(logit); a sink has value 0
};

/// Summed over the entries themselves, so exact however little attention they have; 1 - a from
/// float32 attention is not, once a is near 1. `queries`: indices into the stored queries;
/// `without`: entries to leave out.
RestAttention rest_attention(Backend& backend, const LayerTrace& layer, int head,
                             std::span<const int64_t> queries, std::span<const uint32_t> without);

}  // namespace kvsim
