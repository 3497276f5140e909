#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/core/layer_trace.hpp"

namespace kvsim::test {

/// Shape and make of a random layer. Queries and keys are normal with variance such that logits
/// have about the standard deviation `logit_spread`.
struct RandomTraceShape {
  int query_heads = 4;
  int kv_heads = 2;
  int64_t d = 16;
  int64_t dv = 16;
  int64_t hidden = 24;
  int64_t prompt = 40;                ///< n
  int64_t later = 9;                  ///< N - n
  std::vector<int64_t> queries = {};  ///< stored positions; empty: all
  ElementType type = ElementType::float32;
  double logit_spread = 1.5;
  double softcap = 0;
  int64_t window = 0;
  bool sink = false;
  bool integers = false;  ///< small integers and scale 1/4: products and logits are exact
  bool probe = false;     ///< a probe "repeat" of two parts, which read a half of the prompt each
  bool draft = false;     ///< beside it a probe "draft" of one part; its last token answers
  uint64_t seed = 1;
  /// What stands between heads and stream, letters of: g a gate per channel, h one per head, i a
  /// norm before W_O, o one behind it, m a multiplier behind it.
  std::string between = {};
};

/// A layer in memory with the trace it belongs to.
struct RandomTrace {
  TraceInfo info;
  LayerTrace layer;
};

std::unique_ptr<RandomTrace> random_trace(const RandomTraceShape& shape);

/// Draw number `i` of a normal variable; the same on every machine.
double normal(uint64_t seed, uint64_t stream, uint64_t i);

/// One element of a tensor, rounded to its type.
void set_element(Tensor& tensor, int64_t a, int64_t b, int64_t c, float value);
float element(const Tensor& tensor, int64_t a, int64_t b, int64_t c);

}  // namespace kvsim::test
