#pragma once
#include <cstdint>

#include "sim/backend/cpu/kernels.hpp"
#include "sim/backend/cpu/scratch.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// A triangle L [K][K] for all heads together, K = Hq * dv, with L L^T = W W^T, so that
/// |sum_h x_h W^h| = |x L|: at most half the products, since L has no columns beyond its diagonal.
/// W's Gram matrix and its Cholesky factor are taken in float64, L is rounded to float32.
class JointFactor {
 public:
  /// Whether the factor costs less than it saves in a run of usual size. It asks the trace's shapes
  /// alone, so that no result depends on how many policies a run has.
  static bool pays(const LayerTrace& layer);

  /// False where W W^T is not numerically positive definite: there is no such factor. `memory` is
  /// used meanwhile.
  bool make(const Kernels& kernels, const LayerTrace& layer, Scratch<float>& memory);

  /// Rows of a head, [dv][stride()].
  const float* rows(int64_t head) const { return rows_.data() + head * dv_ * stride_; }
  int64_t stride() const { return stride_; }
  /// Columns that are not zero in some row of the head, whole vectors.
  int64_t columns(int64_t head) const { return padded((head + 1) * dv_, kPad); }
  int64_t width() const { return width_; }  ///< K

 private:
  Scratch<float> rows_;
  int64_t dv_ = 0, width_ = 0, stride_ = 0;
};

}  // namespace kvsim
