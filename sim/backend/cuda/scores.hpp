#pragma once
#include "sim/backend/backend.hpp"
#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda/tiles.hpp"
#include "sim/backend/cuda/walk.hpp"

namespace kvsim::cuda {

/// Logits of some rows of one KV head, stored: logits[row][position], -inf where invisible.
struct Scores {
  RowTable rows;
  int64_t count;        ///< rows
  const void* queries;  ///< [..][depth]
  const void* keys;     ///< [key_count][depth], key 0 at position first_position
  int64_t first_position, key_count;
  int depth;
  float scale, softcap;
  int64_t ld;  ///< positions from row to row
  float* logits;
};
void launch_scores(ElementType type, const Scores& scores, cudaStream_t stream);
int64_t scores_memory(ElementType type, int64_t depth);

/// Softmax of stored logits, and what is wanted of it.
struct Softmax {
  int64_t rows;
  int64_t visible;  ///< positions that any row sees, and from row to row
  const int32_t* head;
  const float* sinks;  ///< [Hq] or null
  int64_t columns;     ///< of the attention; 0: it is not wanted
  const float* logits = nullptr;
  double* log_sum_exp = nullptr;  ///< [rows]
  float* maximum = nullptr;       ///< [rows]
  double* inverse = nullptr;      ///< [rows] 1 / sum of exp(logit - maximum), sink included
  float* attention = nullptr;     ///< [rows][columns]
};
/// Logits and results are in `memory`.
void run_softmax(SoftmaxMemory& memory, Softmax softmax, cudaStream_t stream);

/// sums[column] += sum over rows of weight * term (AttentionSum), in float64 and in the order of
/// the rows. Rows of the `heads` heads of a mean follow each other, `rows` of each.
struct ColumnSums {
  AttentionSum::Of of;
  const float* logits;  ///< [heads][rows][ld]
  int64_t rows, ld, columns;
  int heads;
  const float* maximum;   ///< [heads][rows]
  const double* inverse;  ///< [heads][rows]
  const double* weights;  ///< [rows]
  const double* bounds;   ///< [rows], read for `below` only
  double* sums;           ///< [columns]
};
void launch_column_sums(const ColumnSums& sums, cudaStream_t stream);

/// Arguments that all walks over rows of a layer have in common; keys are those there when it runs.
inline Walk walk_of(const DeviceLayer& layer, const LayerTrace& trace, const RowTable& rows,
                    int64_t all_rows) {
  Walk walk{};
  walk.rows = rows;
  walk.all_rows = all_rows;
  walk.depth = static_cast<int>(layer.depth);
  walk.columns = static_cast<int>(layer.columns);
  walk.scale = static_cast<float>(trace.scale);
  walk.softcap = static_cast<float>(trace.softcap);
  return walk;
}

/// Runs a walk over the keys that are on the device, two stages of tiles if they fit.
inline void run_walk(Context& context, const DeviceLayer& layer, const LayerTrace& trace, Walk walk,
                     int64_t items, int64_t most_rows) {
  walk.queries = layer.queries.data();
  walk.keys = layer.device_keys.data();
  walk.values = layer.device_values.data();
  walk.key_rows = layer.keys.size();
  walk.first_position = layer.keys.begin;
  with_types<Bfloat16, Float16, Float32>(layer.type, [&](auto chosen) {
    using Type = decltype(chosen);
    walk.stages = 2;
    if (walk_memory<Type>(walk.depth, 2, walk.heads_per_tile) > context.shared_memory)
      walk.stages = 1;
    check_shared_memory(context, walk_memory<Type>(walk.depth, walk.stages, walk.heads_per_tile),
                        trace);
    launch_walk<Type>(walk, items, most_rows, context.compute);
  });
}

}  // namespace kvsim::cuda
