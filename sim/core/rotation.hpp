#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Rotates keys and queries by numbers of positions: pairs (x_j, x_{j+d/2}), or (x_2j, x_2j+1) when
/// interleaved, turn by positions * inv_freq[j]. Angles are kept: most of many keys turn by as much
/// as the one before.
class RotationMemory {
 public:
  void rotate(const TraceInfo& info, int64_t positions, std::span<float> row);

 private:
  int64_t positions_ = 0;
  std::vector<double> cosine_, sine_;  ///< [d / 2] of `positions_`, or empty
};

}  // namespace kvsim
