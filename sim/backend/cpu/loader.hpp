#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "sim/backend/cpu/kernels.hpp"
#include "sim/backend/cpu/scratch.hpp"
#include "sim/core/array.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// The shift under the exponential of a row is its maximum when it was last raised; it is raised
/// when a score exceeds it by more than this. exp(20) times any number of keys is far from
/// overflow, and what is scaled down then weighs less than 2e-9 of the row, so the rounding of the
/// factor does not matter.
inline constexpr float kSlack = 20.0f;
/// A score that is not there, and the maximum of no scores.
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// A sink this far above all scores leaves them less than 1e-300, and exp() of more is infinite.
inline constexpr double kSinkAlone = 690.0;
/// exp(sink - shift), finite; 0 without a sink, whose logit is -inf.
inline double sink_mass(double sink, double shift) {
  return std::isinf(sink) ? 0 : std::exp(std::min(sink - shift, kSinkAlone));
}
/// ln of the sum of exponentials, which is `total` under `shift`, the sink's sink_mass() included.
inline double log_sum_with_sink(double shift, double total, double sink) {
  return sink - shift > kSinkAlone ? sink : shift + std::log(total);
}

/// Rows begin..end-1 of slice `a` of a tensor as float32 with row stride `ld` >= columns; columns
/// beyond the tensor's are zero. Returns the tensor's own memory when that will do.
const float* load_rows(const Tensor& tensor, int64_t a, int64_t begin, int64_t end, int64_t ld,
                       Scratch<float>& buffer);

/// Bytes of such rows as they are stored, for bringing them near.
std::span<const std::byte> stored_rows(const Tensor& tensor, int64_t a, int64_t begin, int64_t end);

/// One stored query row of a tile.
struct QueryRow {
  int64_t head = 0;  ///< query head
  int64_t row = 0;   ///< index into the stored queries
};

/// Whether these kernels multiply rows of `items` numbers of two tensors as they are stored, as
/// pairs of bfloat16.
bool multiplies_pairs(const Kernels& kernels, const Tensor& left, const Tensor& right,
                      int64_t items);

/// Rows from `begin` on of slice a of a tensor of bfloat16, as pairs: [rows][items / 2].
const float* stored_pairs(const Tensor& tensor, int64_t a, int64_t begin);

/// Sets the values of a product to whole rows of slice a as load_rows gives them.
void set_values(const Tensor& tensor, int64_t a, Range rows, Scratch<float>& buffer,
                ProductTask& task);

/// Queries and keys of a layer as the kernels multiply them: scaled queries and keys in float32,
/// or, where kernels and trace allow it, pairs of bfloat16.
class ScoreOperands {
 public:
  ScoreOperands(const Kernels& kernels, const LayerTrace& layer);

  bool pairs() const { return pairs_; }
  int64_t depth() const { return depth_; }  ///< items of a row: d, or pairs
  float scale() const { return scale_; }    ///< of products of pairs

  /// Transposed queries qt[depth][ld]: column r is rows[r], columns beyond are zero.
  void load_queries(std::span<const QueryRow> rows, int64_t ld, float* qt) const;
  /// Keys begin..end-1 of a KV head, [keys][depth]; `buffer` may be used.
  const float* load_keys(int64_t kv_head, int64_t begin, int64_t end, Scratch<float>& buffer) const;
  /// Scores of such keys for queries qt[depth][ld]; output and visibility are left to the caller.
  ScoreTask task(const float* keys, int64_t count, const float* qt, int64_t ld) const;

 private:
  const LayerTrace& layer_;
  bool pairs_;
  int64_t depth_;
  float scale_;
};

}  // namespace kvsim
