#pragma once
#include <cuda_runtime.h>

#include <limits>

namespace kvsim::cuda {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
/// A sink this far above all scores leaves them less than 1e-300, and exp() of more is infinite.
constexpr double kSinkAlone = 690.0;

// Operand types of the tensor cores; see tiles.hpp.
template <bool kBfloat16>
struct SixteenBit;
using Bfloat16 = SixteenBit<true>;
using Float16 = SixteenBit<false>;
struct Float32;

/// Throws an Error of one line that names the call and the place; too little memory says so.
[[noreturn]] void call_failed(const char* expression, const char* file, int line,
                              const char* message, bool memory);

}  // namespace kvsim::cuda

/// Every call of the CUDA runtime goes through this.
#define KVSIM_CUDA_CHECK(call)                                                               \
  do {                                                                                       \
    const cudaError_t kvsim_error = (call);                                                  \
    if (kvsim_error != cudaSuccess)                                                          \
      ::kvsim::cuda::call_failed(#call, __FILE__, __LINE__, cudaGetErrorString(kvsim_error), \
                                 kvsim_error == cudaErrorMemoryAllocation);                  \
  } while (false)
