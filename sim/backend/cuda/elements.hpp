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

}  // namespace kvsim::cuda
