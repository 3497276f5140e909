#pragma once
#include <cuda_runtime.h>

namespace kvsim::cuda {

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
