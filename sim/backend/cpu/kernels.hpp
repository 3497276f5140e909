#pragma once
#include <cstdint>

namespace kvsim {

/// Query rows of one tile at most: 6 vectors of 16 floats in the scores, 16 groups of 6 rows in the
/// products.
constexpr int64_t kTileRows = 96;
/// Rows of a tile are padded to a multiple of this, so that no product kernel has a remainder.
constexpr int64_t kRowStep = 6;
/// Step of rows that are read in place, by 6 or by 8.
constexpr int64_t kPlaceStep = 24;
/// Columns of values and row strides of scores are padded to a multiple of this, the widest vector.
constexpr int64_t kPad = 16;

constexpr int64_t padded(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

/// Row stride for the right operand of a product, which is walked down some columns: whole vectors,
/// and an odd number of cache lines. With a power of two its rows would share a few sets of the
/// first-level cache and drive each other out.
template <class T>
constexpr int64_t spread_stride(int64_t columns) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  return (padded(columns, kPad) / kLine | 1) * kLine;
}

// Operands marked `pairs` hold two neighbouring bfloat16 of the depth in the place of each float32,
// the first in the lower half, so that the depth counts pairs. Their products are exact and summed
// in float32, in half the time or less. Only where Kernels::has_pairs() says so.

/// Scores of a tile: s[key][row] = scale * k[key] . q[row], then softcap, then -inf where unseen.
struct ScoreTask {
  const float* k;  ///< [keys][d]
  int64_t keys;
  int64_t d;
  const float* qt;  ///< [d][ld] transposed queries; ld multiple of kPad
  bool pairs;       ///< k and qt
  float scale;      ///< pairs only; float32 queries have been scaled before
  int64_t ld;
  float softcap;                ///< 0: none
  const int32_t* last_visible;  ///< [ld] last visible key of each row, relative to key 0; or null
  float* s;                     ///< [keys][ld]
  float* maximum;               ///< [ld], raised to the largest visible score
  int64_t block;                ///< keys whose scores are finished together; 0: the kernels' own
  const void* ahead;            ///< memory that will be read next and is brought near; or null
  int64_t ahead_bytes;
};

/// Weight of each key for each head of the tile, for sums of importance.
struct TileWeights {
  const float* values;  ///< [keys][ld]; kPad floats may be read from any head's column
  int64_t ld;
  const int32_t* head;  ///< [tile ld] column of each row; ascending
};

/// Sums over keys: mass[row] += sum e[key][row], importance[row] += sum e[key][row] * w[key][head].
struct SumTask {
  const uint16_t* index;  ///< [count] keys, or null for 0..count-1
  int64_t count;
  const float* e;  ///< [keys][ld]
  int64_t ld;
  int64_t begin, end;          ///< rows wanted
  const TileWeights* weights;  ///< or null
  double* mass;                ///< [ld]
  double* importance;          ///< [ld]; untouched without weights
};

/// acc[r][c] += sum over keys e[key][r] * v[key][c] for r < rows (rounded up to kRowStep: acc and e
/// must have room). The sums of each block of keys start from zero: two-level summation.
struct ProductTask {
  const uint16_t* index;  ///< [count] keys, or null for 0..count-1
  int64_t count;          ///< > 0
  int64_t block;          ///< keys whose sums start from zero; 0: the kernels' own
  int64_t ahead;          ///< indices beyond `count` that will be walked next, for prefetching
  bool fresh;             ///< acc = instead of acc +=
  const SumTask* sums;    ///< sums over the same keys, taken while their scores are near; or null
  const float* e;         ///< [keys][lde], first wanted row at column 0
  int64_t lde;
  int64_t rows;
  const float* v;  ///< [keys][ldv]
  int64_t ldv;
  int64_t columns;  ///< multiple of kPad
  float* acc;       ///< [rows][lda]
  int64_t lda;
};

/// One output of the replay: current += previous, out = current * inverse[row] - z. Without
/// `current` the output is that of `previous`.
struct EmitTask {
  const float* previous;  ///< [rows][ld]
  float* current;         ///< [rows][ld] or null
  int64_t ld;
  int64_t rows;
  int64_t columns;
  const float* inverse;  ///< [rows]
  const float* z;        ///< [rows][columns] or null
  float* out;            ///< [rows][columns]
};

/// Norms of rows of a product that is never stored: sums[r] += sum_c |y|^p, with
/// y = sum_k a[k][r] * b[k][c], p = 1 or 2. With pairs `a` holds them; else rows are read where
/// they lie, in parts: a[k][r] = x[r][j / part * stride + j % part] with j = first + k.
struct NormTask {
  const float* a;  ///< [depth][lda]
  int64_t lda;
  const float* const* x;  ///< [rows], up to a multiple of kPlaceStep
  int64_t first;
  int64_t part;
  int64_t stride;
  int64_t rows;    ///< pairs: rounded up to kRowStep: `a` and `sums` must have room
  const float* b;  ///< [depth][ldb]
  int64_t ldb;
  int64_t depth;
  int64_t columns;  ///< multiple of kPad
  bool pairs;       ///< a and b
  bool squares;     ///< p = 2
  bool lower;       ///< b[k][c] is 0 for c > k: skips blocks of zeros
  double* sums;     ///< [rows]
};

/// out[key] += sum over the rows that see the key and where e[key][r] * factor[r] < bound[r] of
/// weight[r]. [ld] arrays; ld a multiple of kPad.
struct BelowTask {
  const float* e;  ///< [keys][ld]
  int64_t keys;
  int64_t ld;
  const float* factor;
  const float* bound;
  const float* weight;
  const int32_t* last_visible;  ///< last visible key of each row, relative to key 0
  double* out;                  ///< [keys]
};

/// Householder's QR of a matrix by itself (LAPACK's geqr2): x holds its columns, one after the
/// other, and takes the vectors v_i with v_i[i] = 1 and zeros before; H_i = 1 - tau_i v_i v_i^T.
struct ReflectTask {
  float* x;        ///< [count][ld], zero from the length on
  int64_t ld;      ///< a multiple of kPad
  int64_t count;   ///< <= length
  int64_t length;  ///< rounded up to kPad: x must have room
  float* tau;      ///< [count]
  float* r;        ///< [count][ldr] columns of R: r[c][k] for k <= c
  int64_t ldr;
};

/// The inner loops, compiled once per instruction set. Everything is float32 unless said otherwise;
/// long sums are two-level or float64.
struct Kernels {
  const char* isa;
  int width;  ///< floats per vector
  void (*scores)(const ScoreTask&);
  /// s = exp(s - shift[row]) in place (0 below 2e-38); sums over all keys as SumTask does.
  void (*exponentiate)(float* s, int64_t keys, int64_t ld, const float* shift,
                       const TileWeights* weights, double* mass, double* importance);
  void (*sums)(const SumTask&);
  void (*product)(const ProductTask&);
  void (*emit)(const EmitTask&);
  void (*norms)(const NormTask&);
  /// c[r][c] = sum_k a[k][r] * b[k][c]; rows rounded up to kRowStep, columns multiple of kPad.
  void (*multiply)(const float* a, int64_t lda, int64_t rows, const float* b, int64_t ldb,
                   int64_t depth, int64_t columns, float* c, int64_t ldc);
  /// Multiplies pairs; null where there is no such instruction.
  void (*multiply_pairs)(const float* a, int64_t lda, int64_t rows, const float* b, int64_t ldb,
                         int64_t depth, int64_t columns, float* c, int64_t ldc);
  /// Multiplies in float64.
  void (*multiply64)(const double* a, int64_t lda, int64_t rows, const double* b, int64_t ldb,
                     int64_t depth, int64_t columns, double* c, int64_t ldc);
  /// c[r][c] += sum_k a[k][r] * b[k][c], in float32; rows and columns as for `multiply`.
  void (*add_multiply)(const float* a, int64_t lda, int64_t rows, const float* b, int64_t ldb,
                       int64_t depth, int64_t columns, float* c, int64_t ldc);
  void (*reflect)(const ReflectTask&);
  /// out[key] += sum_r e[key][r] * factor[r] for r < ld, ld a multiple of kPad.
  void (*fold)(const float* e, int64_t keys, int64_t ld, const float* factor, double* out);
  void (*fold_below)(const BelowTask&);
  /// out[key][r] += e[key][r] * factor[r] (= where fresh), r < ld as above.
  void (*add_scaled)(const float* e, int64_t keys, int64_t ld, const float* factor, bool fresh,
                     float* out);
  /// out[key] += sum_r weight[r] * x[key][r], or its square, in float64.
  void (*fold64)(const float* x, int64_t keys, int64_t ld, const double* weight, bool squares,
                 double* out);
  /// out[c][r] = in[r][c].
  void (*transpose)(const float* in, int64_t rows, int64_t columns, int64_t ldin, float* out,
                    int64_t ldout);
  void (*softcap)(float* x, int64_t count, float cap);
  float (*maximum)(const float* x, int64_t count);
  /// out = exp(x - shift), 0 below 2e-38; returns the sum. `out` may be `x`.
  double (*exp_row)(const float* x, int64_t count, float shift, float* out);
  void (*scale_row)(float* x, int64_t count, float factor);
  /// x += by; largest is raised to what x then is.
  void (*shift_row)(float* x, int64_t count, float by, float* largest);
  /// sum |x|, or sum x^2.
  double (*row_sum)(const float* x, int64_t count, bool squares);

  bool has_pairs() const { return multiply_pairs != nullptr; }
};

// Null where the architecture has no such instruction set.
const Kernels* kernels_portable();
const Kernels* kernels_v2();
const Kernels* kernels_v3();
const Kernels* kernels_v4();
const Kernels* kernels_v4_bf16();

/// The kernels to use: the widest that this processor runs and its system lets this program use, or
/// the one that the environment variable KVSIM_ISA names (v2, v3, v4, v4-bf16, portable); a usage
/// error if it cannot run here.
const Kernels& choose_kernels();

}  // namespace kvsim
