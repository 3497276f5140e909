#pragma once
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// A of metrics.md in float64, by plain loops: softmax over everything that a head's stored query
/// sees, the sink among it. [p + 1] of a query at position p, 0 outside its window.
std::vector<double> attention_row(const LayerTrace& layer, int64_t head, int64_t row);
/// Sum of weight times value over the first entries [dv].
std::vector<double> weighted_values(const LayerTrace& layer, int64_t head,
                                    const std::vector<double>& weights);

/// Attention outputs before W_O in float64: Z [Hq][R][dv] at `positions` [R], each of which must be
/// a stored query (bad data otherwise). logit = scale * q.k, then softcap; entry i is visible to
/// position p when i <= p and i > p - W; the sink joins the softmax and has no value.
std::vector<double> attention_outputs(const LayerTrace& layer,
                                      const std::vector<int64_t>& positions);

/// Takes stored queries by their index.
std::vector<double> outputs_of_rows(const LayerTrace& layer, const std::vector<int64_t>& rows);
/// [Hq][R][dv] of the tokens of a probe that was read, at its `check_token`.
std::vector<double> probe_outputs(const LayerTrace& layer, int probe);

/// How far recorded outputs are from recomputed ones in one layer.
struct LayerCheck {
  static constexpr int kAdded = -1;  ///< of what the layer adds to the residual stream
  int layer = 0;
  double error = 0;        ///< largest over heads of |Z - Z_check|_F / |Z_check|_F, Z = [R, dv]
  int head = 0;            ///< where it is largest; kAdded: not of a head
  std::string probe = {};  ///< whose queries; empty: those of the trace itself
};

/// Needs a layer read with its recorded outputs.
LayerCheck check_layer(const LayerTrace& layer);
/// Checks what the layer adds to the residual stream, and the roots of its norms (trace-format.md
/// 8): the largest of the relative errors.
LayerCheck check_added(const LayerTrace& layer);
/// Does it for a probe.
LayerCheck check_probe(const LayerTrace& layer, int probe);

}  // namespace kvsim
