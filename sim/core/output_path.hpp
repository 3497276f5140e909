#pragma once
#include <vector>

#include "sim/core/tensor.hpp"

namespace kvsim {

struct LayerTrace;

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

/// Puts W* in the place of `layer.wo`, which `layer.path.wo` then holds as it was stored. Nothing
/// happens to a layer whose path is empty. A W* that is not finite is bad data.
void set_usual_output(LayerTrace& layer);

/// What a layer adds to the stream [D] by definition, in float64, from its heads' outputs z
/// [Hq][dv] at a stored query. `inner_root`, `outer_root`: where not null, the roots that were
/// divided by.
std::vector<double> added_to_stream(const LayerTrace& layer, int64_t query,
                                    const std::vector<double>& z, double* inner_root = nullptr,
                                    double* outer_root = nullptr);

}  // namespace kvsim
