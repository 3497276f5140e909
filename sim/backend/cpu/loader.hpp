#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "sim/backend/cpu/kernels.hpp"
#include "sim/backend/cpu/scratch.hpp"
#include "sim/core/array.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

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

/// Rows of two 16-bit tensors as the kernels multiply them exactly, as pairs of bfloat16. A row of
/// the left one is its terms, each repeated for every term of the right one; rows of the right one
/// are all their terms, repeated for every term of the left one: the sum over such rows is that
/// over all products of terms. Between bfloat16 tensors these are the rows as they are stored.
class PairOperands {
 public:
  enum class Side { left, right };
  PairOperands() = default;
  /// Rows of `items` numbers.
  PairOperands(const Kernels& kernels, const Tensor& left, const Tensor& right, int64_t items);

  /// Whether these kernels multiply such tensors as pairs.
  bool usable() const { return left_ > 0 && right_ > 0; }
  int terms(Side side) const { return side == Side::left ? left_ : right_; }
  int products() const { return left_ * right_; }
  int64_t depth() const { return depth_; }  ///< pairs of a row
  /// Rows begin..end-1 of slice a, [rows][depth]; `buffer` may be used.
  const float* load(Side side, const Tensor& tensor, int64_t a, int64_t begin, int64_t end,
                    Scratch<float>& buffer) const;
  /// One row, [depth].
  void load_row(Side side, const Tensor& tensor, int64_t a, int64_t b, float* out) const;

 private:
  int left_ = 0, right_ = 0;  // terms; 0: not as pairs
  int64_t items_ = 0, depth_ = 0;
};

/// Terms of bfloat16 whose sum a number of 16 bits is exactly: one, or two of a float16, the larger
/// one first; out[terms][ld].
void split(ElementType type, const std::byte* raw, int64_t count, uint16_t* out, int64_t ld);

/// out[i] = lower[i], and upper[i] in the upper half.
void pair_up(const uint16_t* lower, const uint16_t* upper, int64_t count, uint32_t* out);

/// Where kernels and tensor allow it, sets the values of a product to some columns of all rows of
/// slice a in 16 bits, as tiles take them (ProductTask::paired); columns beyond the tensor's, up to
/// a multiple of kPad, are zero. `buffer` may be used. Returns whether it did.
bool set_paired_parts(const Kernels& kernels, const Tensor& tensor, int64_t a, Range columns,
                      Scratch<float>& buffer, ProductTask& task);

/// Sets the values of a product to whole rows, in 16 bits or else as load_rows gives them.
void set_values(const Kernels& kernels, const Tensor& tensor, int64_t a, Range rows,
                Scratch<float>& buffer, ProductTask& task);

/// Queries and keys of a layer as the kernels multiply them: scaled queries and keys in float32,
/// or, where kernels and trace allow it, pairs of bfloat16.
class ScoreOperands {
 public:
  ScoreOperands(const Kernels& kernels, const LayerTrace& layer);

  bool pairs() const { return pairs_.usable(); }
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
  PairOperands pairs_;  ///< keys left, queries right
  int64_t depth_;
  float scale_;
};

}  // namespace kvsim
