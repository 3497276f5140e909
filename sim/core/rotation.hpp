#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Rotates keys and queries by numbers of positions. Angles are kept: most of many keys turn by as
/// much as the one before.
class RotationMemory {
 public:
  void rotate(const Rotation& rotation, int64_t positions, std::span<float> row);

 private:
  const Rotation* rotation_ = nullptr;
  int64_t positions_ = 0;
  std::vector<double> cosine_, sine_;  ///< [r] of `positions_`, or empty
};

}  // namespace kvsim
