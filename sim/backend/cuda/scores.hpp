#pragma once
#include "sim/backend/backend.hpp"
#include "sim/backend/cuda/context.hpp"
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

}  // namespace kvsim::cuda
