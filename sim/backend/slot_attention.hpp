#pragma once
#include <cstdint>
#include <vector>

namespace kvsim {

/// Keys and values that are attended to: entries of a trace or what became of them. Row-major.
struct SlotSegment {
  const float* keys = nullptr;    ///< [count][d]
  const float* values = nullptr;  ///< [count][dv]
  int64_t count = 0;
  const float* log_weight = nullptr;  ///< [heads][count] lambda, added to the logits; null: 0
};

/// Queries of neighbouring query heads that attend to the same slots: those of all segments, in
/// their order. Arrays are row-major, and null where something is not wanted.
struct SlotRows {
  int first_head = 0;  ///< query heads first_head .. first_head + heads - 1, for their sinks
  int heads = 0;
  int64_t rows = 0;                ///< queries of each head
  const float* queries = nullptr;  ///< [heads][rows][d]
  std::vector<SlotSegment> segments;
  const int64_t* seen = nullptr;  ///< [rows] how many slots a row sees, the first ones; null: all

  float* logits = nullptr;        ///< out [heads][rows][slots], weights included; unseen ones -inf
  double* log_sum_exp = nullptr;  ///< out [heads][rows] over what is seen, sink included
  float* outputs = nullptr;       ///< out [heads][rows][dv]

  int64_t slots() const {
    int64_t sum = 0;
    for (const SlotSegment& segment : segments) sum += segment.count;
    return sum;
  }
};

}  // namespace kvsim
