#pragma once
#include <cstdint>
#include <vector>

#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Keys and values that are attended to: entries of a trace or what became of them. Row-major.
struct SlotSegment {
  const float* keys = nullptr;    ///< [count][d]
  const float* values = nullptr;  ///< [count][dv]; null where no outputs are wanted
  int64_t count = 0;
  /// [heads][count] lambda, added to the logits; -inf: not seen; null: all 0.
  const float* log_weight = nullptr;
};

/// Queries of neighbouring query heads that attend to the same slots: those of all segments, in
/// their order. Arrays are row-major, and null where something is not wanted.
struct SlotRows {
  int heads = 0;
  int64_t rows = 0;                ///< queries of each head
  const float* queries = nullptr;  ///< [heads][rows][d]
  std::vector<SlotSegment> segments;
  const int64_t* seen = nullptr;  ///< [rows] how many slots a row sees, the first ones; null: all
  const float* sinks = nullptr;   ///< [heads] logits of the sinks, whose value is 0; null: none

  float* logits = nullptr;        ///< out [heads][rows][slots], weights included; unseen ones -inf
  float* attention = nullptr;     ///< out [heads][rows][slots]
  double* log_sum_exp = nullptr;  ///< out [heads][rows] over what is seen, sink included; or -inf
  float* outputs = nullptr;       ///< out [heads][rows][dv]; 0 where nothing is seen

  int64_t slots() const {
    int64_t sum = 0;
    for (const SlotSegment& segment : segments) sum += segment.count;
    return sum;
  }
};

/// For SlotRows::sinks: those of a layer's query heads from `first_head` on.
inline const float* sinks_from(const LayerTrace& layer, int first_head) {
  return layer.attention_sink.empty() ? nullptr : layer.attention_sink.data() + first_head;
}

}  // namespace kvsim
