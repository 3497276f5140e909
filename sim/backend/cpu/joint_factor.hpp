#pragma once
#include <cstdint>

#include "sim/backend/cpu/kernels.hpp"
#include "sim/backend/cpu/scratch.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// A triangle L [K][K] for all heads together, K = Hq * dv, with L L^T = W W^T, so that
/// |sum_h x_h W^h| = |x L|: at most half the products, since L has no columns beyond its diagonal.
/// It is R^T of W^T = Q R, by Householder's reflections in float32: that is the triangle of a
/// matrix beside W^T by a few roundings of its columns (Higham, Accuracy and Stability, 19.4),
/// whatever its rank.
class JointFactor {
 public:
  /// Whether the factor costs less than it saves in a run of usual size. It asks the trace's shapes
  /// alone, so that no result depends on how many policies a run has.
  static bool pays(const LayerTrace& layer);

  /// `memory` is used meanwhile.
  void make(const Kernels& kernels, const LayerTrace& layer, Scratch<float>& memory);

  /// Columns of a panel.
  static constexpr int64_t kPanel = 48;
  /// Columns c.. of rows c..K-1, c a multiple of kPanel: [K - c][kPanel], zero above the diagonal
  /// and beyond column K-1. Rows above have nothing there.
  const float* panel(int64_t c) const { return panels_.data() + before(width_, c); }
  int64_t width() const { return width_; }  ///< K

 private:
  /// Numbers in the panels before that of column c.
  static int64_t before(int64_t size, int64_t c) { return c * size - c * (c - kPanel) / 2; }

  Scratch<float> panels_;
  int64_t width_ = 0;
};

}  // namespace kvsim
