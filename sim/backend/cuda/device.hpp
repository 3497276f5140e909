#pragma once
// Words that kernels are written with, and the only place that knows nvcc: qualifiers, the launch,
// and thin wrappers of the few instructions that C++ has no name for. The same kernel sources also
// compile as plain C++ against a host runtime (tests/support/cuda_on_host), which has these
// wrappers too.
#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "sim/backend/cuda/check.hpp"

#ifndef __CUDACC__
#ifndef KVSIM_CUDA_ON_HOST
#error "kernels are compiled by nvcc"
#endif
#include "tests/support/cuda_on_host/device.hpp"
#else
#define KVSIM_UNROLL _Pragma("unroll")

namespace kvsim::cuda {

/// kernel<<<grid, block, shared, stream>>>(arguments...), with the opt-in that more than 48 KB of
/// shared memory need.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared,
            cudaStream_t stream, Arguments&&... arguments) {
  if (shared > size_t{48} << 10)
    KVSIM_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shared)));
  // clang-format off
  kernel<<<grid, threads, shared, stream>>>(std::forward<Arguments>(arguments)...);
  // clang-format on
  KVSIM_CUDA_CHECK(cudaGetLastError());
}

/// The block's dynamic shared memory, aligned to 16 bytes.
__device__ inline unsigned char* shared_memory() {
  extern __shared__ uint4 kvsim_shared_memory[];
  return reinterpret_cast<unsigned char*>(kvsim_shared_memory);
}

__device__ inline void block_barrier() { __syncthreads(); }

/// The value of lane (own lane xor mask).
template <class T>
__device__ inline T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

/// 2^x to 2 ulp; 0 below 2^-126.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// 16 bytes from global to shared memory without passing registers; zeros if not `valid`. They are
/// there after copies_wait of the group that was closed after them, and for other threads after a
/// barrier.
__device__ inline void copy16_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copies_close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `kOpen` of the thread's closed groups are under way.
template <int kOpen>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

/// Four 8 x 8 matrices of 16-bit elements; `row` of lane 8 i + j is row j of matrix i (16 bytes,
/// aligned). Lane 4 g + t gets elements [g][2t], [g][2t + 1] of matrix i in r[i].
__device__ inline void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
/// Likewise transposed: lane 4 g + t gets [2t][g], [2t + 1][g].
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// c[16][8] += a[16][k] b[k][8] by one warp, k = 16 (16-bit) or 8 (tf32), float32 sums. Lane 4 g + t
// holds c[g][2t], c[g][2t+1], c[g+8][2t], c[g+8][2t+1]. 16-bit: a[g][2t..], a[g+8][2t..],
// a[g][2t+8..], a[g+8][2t+8..] and b[2t..][g], b[2t+8..][g], each two elements. tf32: a[g][t],
// a[g+8][t], a[g][t+4], a[g+8][t+4] and b[t][g], b[t+4][g].
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Rounded to nearest: two 16-bit values in one word, `low` in the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ inline uint32_t pack_f16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ inline float f16_to_float(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
/// To 11 significant bits, as the bits of a float32.
__device__ inline uint32_t round_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}
__device__ inline float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }

}  // namespace kvsim::cuda

#endif
