#pragma once
// Products of tiles by one warp on tensor cores, for the three element types of a trace.
//
// A warp owns 16 rows. Lane 4 g + t holds of every 8 columns of a result c[0], c[1] = row g,
// columns 2t, 2t + 1 and c[2], c[3] = row g + 8, the same columns ("accumulator layout").
//
// 16-bit elements multiply exactly; scores under the softmax are split into a high and a low 16-bit
// part, which leaves an error of 2^-17 (bfloat16) or 2^-22 (float16) of each. float32 elements are
// split into two tf32 parts and multiplied three times (the product of the low parts is below
// 2^-22). Tensor cores cut sums off instead of rounding them, so no sum stays in them for long:
// every product of tiles starts from zero and is added by the float32 units.
#include "sim/backend/cuda/check.hpp"
#include "sim/backend/cuda/device.hpp"
#include "sim/core/prelude.hpp"

namespace kvsim::cuda {

constexpr float kLog2E = 1.4426950408889634f;

/// One operand [16][step]; `low` is what `high` lacks.
struct Fragment {
  uint32_t high[4], low[4];
};

/// bfloat16 or float16 elements.
template <bool kBfloat16>
struct SixteenBit {
  using Element = uint16_t;
  static constexpr int kStep = 16;   ///< depth of one instruction
  static constexpr int kChain = 64;  ///< depth of a sum inside the tensor core
  static constexpr int kRows = 128;  ///< rows of a block: 8 warps
  static constexpr int kKeys = 64;   ///< keys of a tile
  static constexpr int kPad = 8;     ///< elements between rows in shared memory: no conflicts
  static constexpr int kPadValues = 8;
  /// Scores are at most 1 times this: float16 would lose the small ones otherwise.
  static constexpr float kScale = kBfloat16 ? 1.0f : 16384.0f;

  static __device__ float widen(Element x) {
    if constexpr (kBfloat16) return bits_to_float(static_cast<uint32_t>(x) << 16);
    return f16_to_float(x);
  }
  static __device__ uint32_t pack(float low, float high) {
    if constexpr (kBfloat16) return pack_bf16(low, high);
    return pack_f16(low, high);
  }
  static __device__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kBfloat16)
      mma_bf16(c, a, b0, b1);
    else
      mma_f16(c, a, b0, b1);
  }

  /// a[16][16] from shared memory.
  static __device__ void load_a(Fragment& a, const Element* tile, int ld, int lane) {
    load_matrices(a.high, tile + (lane % 16) * ld + lane / 16 * 8);
  }
  /// c0 | c1 [16][8 | 8] += a b^T for 16 rows b[16][16] in shared memory.
  static __device__ void multiply_transposed(float (&c0)[4], float (&c1)[4], const Fragment& a,
                                             const Element* b, int ld, int lane) {
    uint32_t r[4];
    load_matrices(r, b + (lane / 16 * 8 + lane % 8) * ld + lane / 8 % 2 * 8);
    mma(c0, a.high, r[0], r[1]);
    mma(c1, a.high, r[2], r[3]);
  }
  /// c0 | c1 += a b for b[16][8 | 8] in shared memory; kSplit: a has a low part.
  template <bool kSplit>
  static __device__ void multiply(float (&c0)[4], float (&c1)[4], const Fragment& a,
                                  const Element* b, int ld, int lane) {
    uint32_t r[4];
    load_matrices_transposed(r, b + (lane / 8 % 2 * 8 + lane % 8) * ld + lane / 16 * 8);
    if constexpr (kSplit) {
      mma(c0, a.low, r[0], r[1]);
      mma(c1, a.low, r[2], r[3]);
    }
    mma(c0, a.high, r[0], r[1]);
    mma(c1, a.high, r[2], r[3]);
  }
  /// Columns 16 step .. 16 step + 15 of scores in accumulator layout.
  template <int kTiles>
  static __device__ void split(Fragment& a, const float (&s)[kTiles][4], int step) {
    for (int i = 0; i < 4; ++i) {
      const float x = s[2 * step + i / 2][i % 2 * 2], y = s[2 * step + i / 2][i % 2 * 2 + 1];
      a.high[i] = pack(x, y);
      a.low[i] = pack(x - widen(static_cast<Element>(a.high[i] & 0xffffu)),
                      y - widen(static_cast<Element>(a.high[i] >> 16)));
    }
  }
};

/// float32 elements. The depth of every product is taken in the order 0 2 4 6 1 3 5 7: then scores
/// in accumulator layout are an operand as they are, and an operand is two neighbours in memory.
struct Float32 {
  using Element = float;
  static constexpr int kStep = 8;
  static constexpr int kChain = 16;
  static constexpr int kRows = 64;
  static constexpr int kKeys = 32;
  static constexpr int kPad = 8;
  static constexpr int kPadValues = 4;
  static constexpr float kScale = 1.0f;

  static __device__ float widen(Element x) { return x; }
  static __device__ void split_one(float x, uint32_t& high, uint32_t& low) {
    high = round_tf32(x);
    low = round_tf32(x - bits_to_float(high));
  }
  static __device__ void mma(float (&c)[4], const Fragment& a, float b0, float b1) {
    uint32_t high0, low0, high1, low1;
    split_one(b0, high0, low0);
    split_one(b1, high1, low1);
    mma_tf32(c, a.low, high0, high1);
    mma_tf32(c, a.high, low0, low1);
    mma_tf32(c, a.high, high0, high1);
  }

  static __device__ void load_a(Fragment& a, const Element* tile, int ld, int lane) {
    const Element* const at = tile + lane / 4 * ld + lane % 4 * 2;
    split_one(at[0], a.high[0], a.low[0]);
    split_one(at[8 * ld], a.high[1], a.low[1]);
    split_one(at[1], a.high[2], a.low[2]);
    split_one(at[8 * ld + 1], a.high[3], a.low[3]);
  }
  static __device__ void multiply_transposed(float (&c0)[4], float (&c1)[4], const Fragment& a,
                                             const Element* b, int ld, int lane) {
    const Element* const at = b + lane / 4 * ld + lane % 4 * 2;
    mma(c0, a, at[0], at[1]);
    mma(c1, a, at[8 * ld], at[8 * ld + 1]);
  }
  template <bool kSplit>
  static __device__ void multiply(float (&c0)[4], float (&c1)[4], const Fragment& a,
                                  const Element* b, int ld, int lane) {
    const Element* const at = b + lane % 4 * 2 * ld + lane / 4;
    mma(c0, a, at[0], at[ld]);
    mma(c1, a, at[8], at[ld + 8]);
  }
  template <int kTiles>
  static __device__ void split(Fragment& a, const float (&s)[kTiles][4], int step) {
    split_one(s[step][0], a.high[0], a.low[0]);
    split_one(s[step][2], a.high[1], a.low[1]);
    split_one(s[step][1], a.high[2], a.low[2]);
    split_one(s[step][3], a.high[3], a.low[3]);
  }
};

/// An element in memory that is widened to float32 when it is read.
template <class Type>
struct Widening {
  typename Type::Element bits;
  __device__ float widened() const { return Type::widen(bits); }
};

/// Starts the copies of `count` rows to a tile of `rows` rows, zeros beyond; row i is from[index[i]
/// - first], or from[i] without an index. Rows are `columns` elements long (a multiple of 16, whole
/// rows 16-byte aligned) and `stride` apart. By all threads of the block. Indices come some at a
/// time, so that their ways from memory overlap, and no piece costs a division.
template <class Element>
__device__ inline void copy_rows(Element* tile, int ld, int rows, int columns, const Element* from,
                                 int64_t stride, const uint32_t* index, int64_t first, int count) {
  constexpr int kPiece = 16 / static_cast<int>(sizeof(Element));
  constexpr int kTogether = 4;
  const int pieces = columns / kPiece, thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int more_rows = threads / pieces, more_pieces = threads % pieces;
  int row = thread / pieces, piece = thread % pieces;
  while (row < rows) {
    int to_row[kTogether], to_piece[kTogether];
    int64_t source[kTogether];
    KVSIM_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      to_row[i] = row, to_piece[i] = piece;
      source[i] = row >= count       ? 0
                  : index != nullptr ? static_cast<int64_t>(index[row]) - first
                                     : row;
      row += more_rows, piece += more_pieces;
      if (piece >= pieces) ++row, piece -= pieces;
    }
    KVSIM_UNROLL
    for (int i = 0; i < kTogether; ++i)
      if (to_row[i] < rows)
        copy16_async(tile + to_row[i] * ld + to_piece[i] * kPiece,
                     from + source[i] * stride + to_piece[i] * kPiece, to_row[i] < count);
  }
}

/// s[16][keys of the tile] = a b^T over `depth` (a multiple of 16), for a[16][depth] and
/// b[Type::kKeys][depth] in shared memory.
template <class Type, int kTiles>
__device__ inline void dot_products(float (&s)[kTiles][4], const typename Type::Element* a,
                                    const typename Type::Element* b, int ld, int depth, int lane) {
  for (int i = 0; i < kTiles; ++i)
    for (int j = 0; j < 4; ++j) s[i][j] = 0;
  for (int begin = 0; begin < depth; begin += Type::kChain) {
    constexpr int kSteps = Type::kChain / Type::kStep;
    const int steps = (depth - begin < Type::kChain ? depth - begin : Type::kChain) / Type::kStep;
    Fragment rows[kSteps];
    KVSIM_UNROLL
    for (int k = 0; k < kSteps; ++k)
      if (k < steps) Type::load_a(rows[k], a + begin + k * Type::kStep, ld, lane);
    KVSIM_UNROLL
    for (int i = 0; i < kTiles; i += 2) {
      float c0[4] = {0, 0, 0, 0}, c1[4] = {0, 0, 0, 0};
      KVSIM_UNROLL
      for (int k = 0; k < kSteps; ++k)
        if (k < steps)
          Type::multiply_transposed(c0, c1, rows[k], b + i * 8 * ld + begin + k * Type::kStep, ld,
                                    lane);
      for (int j = 0; j < 4; ++j) {
        s[i][j] += c0[j];
        s[i + 1][j] += c1[j];
      }
    }
  }
}

}  // namespace kvsim::cuda
