#pragma once
#include <cstddef>

namespace cuda_on_host {

/// Around what kernels may touch, and in all that they have not written.
inline constexpr size_t kGuard = 4096;
inline constexpr unsigned char kPoison = 0xff;  // NaN in every float type, -1 in every integer

}  // namespace cuda_on_host
