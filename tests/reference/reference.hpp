#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/core/layer_trace.hpp"

/// What the heavy verbs mean, in float64 and plain loops over one element at a time. Slow and
/// obviously right; kept for ever, and never optimised.
namespace kvsim::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Logits of query head `head` at stored query `row` for all N positions; -inf where invisible.
std::vector<double> logits(const LayerTrace& layer, int head, int64_t row);

struct Attention {
  std::vector<double> weight;  ///< [N] A; 0 where invisible or not present
  double log_sum_exp = 0;      ///< over what is present, sink included
};

/// Softmax of logits over the present positions (all if `present` is empty), sink included.
Attention attention(const LayerTrace& layer, int head, const std::vector<double>& logits,
                    const std::vector<bool>& present = {});

/// sum_i weight[i] v_i, [dv].
std::vector<double> output(const LayerTrace& layer, int head, const std::vector<double>& weight);

/// x W^h, [D]; x is [dv].
std::vector<double> project(const LayerTrace& layer, int head, const std::vector<double>& x);

/// What the layer adds to the residual stream, [D], where its heads put out z [Hq][dv] at stored
/// query `row` (trace-format.md 8).
std::vector<double> added(const LayerTrace& layer, int64_t row,
                          const std::vector<std::vector<double>>& z);

/// v_i of the KV head that query head `head` reads, [dv].
std::vector<double> value(const LayerTrace& layer, int head, int64_t entry);
/// Key of an entry as a query head reads it.
std::vector<double> key_of(const LayerTrace& layer, int head, int64_t entry);

double l1(const std::vector<double>& x);
double l2(const std::vector<double>& x);

}  // namespace kvsim::reference
