#pragma once
#include <cstdint>

namespace kvsim::bench {

/// Name of the library whose matrix product the baselines use.
const char* gemm_library();

/// c[m][n] = a[m][k] * b, with b [k][n], or [n][k] if `transposed`; all threads.
void gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, bool transposed,
          float* c);

}  // namespace kvsim::bench
