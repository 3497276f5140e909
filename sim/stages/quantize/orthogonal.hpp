#pragma once
#include <Eigen/Core>

#include "sim/core/prelude.hpp"

namespace kvsim {

/// An orthogonal map of a head's vectors (policies.md 11.1), the same for all heads and layers.
class Orthogonal {
 public:
  /// `hadamard`: Sylvester's matrix on blocks of the largest power of two that divides the size,
  /// over the root of the block's size; `random`: uniform among all, from a fixed seed.
  enum class Kind { none, hadamard, random };
  Orthogonal(Kind kind, int64_t size);
  void apply(std::span<float> row) const { multiply(row, false); }
  void undo(std::span<float> row) const { multiply(row, true); }

 private:
  void multiply(std::span<float> row, bool transposed) const;
  Eigen::MatrixXf matrix_;  ///< empty: nothing turns
};

}  // namespace kvsim
