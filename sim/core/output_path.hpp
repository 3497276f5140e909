#pragma once
#include <vector>

#include "sim/core/tensor.hpp"

namespace kvsim {

/// A root-mean-square norm, or a gain alone.
struct PathNorm {
  std::vector<float> gain;  ///< [Hq * dv] or [D]; empty: there is none
  bool divides = false;     ///< by the root; else the gain alone is multiplied with
  double eps = 0;
  std::vector<float> rms;  ///< [M] roots at the stored queries, where it divides
  double usual = 1;        ///< root that W* is divided by

  /// Root of the mean square, from the sum over `count` numbers.
  double root(double sum_of_squares, double count) const;
};

/// Everything beside W_O between a layer's heads and the residual stream (trace-format.md 8).
struct OutputPath {
  Tensor wo;                      ///< [Hq][dv][D] as stored; empty: W_O is all there is
  Tensor gate;                    ///< [Hq][M][dv] or [Hq][M][1]; empty: none
  std::vector<float> usual_gate;  ///< [Hq * dv] with which W* is multiplied; empty without a gate
  PathNorm inner, outer;

  bool empty() const { return gate.empty() && inner.gain.empty() && outer.gain.empty(); }
  /// A layer's share of the stream is more than a product with W*.
  bool needs_evaluation() const { return !gate.empty() || inner.divides || outer.divides; }
  /// Gate of a head at a stored query: out[dv].
  void read_gate(int64_t head, int64_t query, std::vector<float>& out) const;
};

}  // namespace kvsim
