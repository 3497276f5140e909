#pragma once
#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda/tiles.hpp"

namespace kvsim::cuda {

/// Widens `count` elements of a layer's type.
void widen_to_double(ElementType type, const std::byte* from, int64_t count, double* to,
                     cudaStream_t stream);
void widen_to_float(ElementType type, const std::byte* from, int64_t count, float* to,
                    cudaStream_t stream);

/// c[m][n] = a[m][k] b[n][k]^T in float64, row-major, for `count` matrices in a row.
void multiply_transposed(Context& context, const double* a, const double* b, double* c, int64_t m,
                         int64_t n, int64_t k, int64_t count);

/// Transposed factors of all heads, [Hq][columns][columns] float32: |x W^h| = |x f[h]|. See
/// backend.hpp.
void output_factors(Context& context, const DeviceLayer& layer, DeviceBuffer<float>& factors);

/// out[slice][row] = sum over columns of |y| or y^2, y = x[slice / group][row] b[slice]. The
/// product is never stored.
struct RowNorms {
  const void* x;    ///< elements of `Source`
  int64_t x_slice;  ///< elements from slice to slice
  int64_t x_row;    ///< elements from row to row
  int64_t rows;
  int group;
  int x_columns;     ///< elements of a row; what is missing up to `depth` is zero
  const void* b;     ///< [slices][depth][width] elements of `Type`
  int depth, width;  ///< multiples of 16
  bool squares;
  double* out;  ///< [slices][rows]
};

constexpr int kNormColumns = 64;  ///< columns of b in shared memory

template <class Type>
int64_t row_norms_memory(int depth) {
  return static_cast<int64_t>(sizeof(typename Type::Element)) *
         (Type::kRows * (depth + Type::kPad) + depth * (kNormColumns + Type::kPadValues));
}

/// Launches the kernel for rows and matrices of some types.
template <class Type, class Source>
void launch_row_norms(const RowNorms& norms, int64_t slices, cudaStream_t stream);

}  // namespace kvsim::cuda
