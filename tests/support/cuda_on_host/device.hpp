#pragma once
// Kernels as plain C++: the threads of a block are fibres that run one after the other up to the
// next barrier, blocks run one after the other. A kernel that lacks a barrier gives other results
// in another order of its threads; one that leaves its memory meets NaN or a broken guard.
#include <type_traits>

#include "sim/core/prelude.hpp"
#include "tests/support/cuda_on_host/cuda_runtime.h"
#include "tests/support/cuda_on_host/order.hpp"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __restrict__
#define KVSIM_UNROLL

namespace cuda_on_host {

/// For this process.
void set_order(Order order);

struct ThreadIndex {
  dim3 thread, block, block_size, grid;
};
const ThreadIndex& index();

/// Runs a kernel now; throws std::logic_error for what a device would call an error or would not
/// even notice: a barrier that not all threads reach, a write beyond shared memory.
void run(dim3 grid, unsigned threads, size_t shared, const std::function<void()>& thread);

unsigned char* shared_memory();
void block_barrier();
/// All lanes of the warp meet; `together` is called once, with what each lane brought.
void warp_meet(void* mine, void (*together)(void* const (&lanes)[32]));

void copy16_async(void* to, const void* from, bool valid);
void copies_close_group();
void copies_wait(int open);

}  // namespace cuda_on_host

#define threadIdx (cuda_on_host::index().thread)
#define blockIdx (cuda_on_host::index().block)
#define blockDim (cuda_on_host::index().block_size)
#define gridDim (cuda_on_host::index().grid)

namespace kvsim::cuda {

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared,
            cudaStream_t stream, Arguments&&... arguments) {
  cuda_on_host::enqueue(stream,
                        [=, values = std::tuple<std::decay_t<Parameters>...>(arguments...)] {
    cuda_on_host::run(grid, threads, shared, [&] { std::apply(kernel, values); });
  });
}

inline unsigned char* shared_memory() { return cuda_on_host::shared_memory(); }
inline void block_barrier() { cuda_on_host::block_barrier(); }

template <class T>
T shuffle_xor(T value, int mask) {
  struct Lane {
    T value, result;
    int mask;
  } lane{value, T(), mask};
  cuda_on_host::warp_meet(&lane, [](void* const(&lanes)[32]) {
    for (int i = 0; i < 32; ++i) {
      Lane& mine = *static_cast<Lane*>(lanes[i]);
      mine.result = static_cast<Lane*>(lanes[i ^ mine.mask])->value;
    }
  });
  return lane.result;
}

/// As imprecise as the device's: 0 below the normal numbers.
inline float exp2_fast(float x) {
  const float y = std::exp2(x);
  return y < 1.17549435e-38f ? 0.0f : y;
}

inline void copy16_async(void* to, const void* from, bool valid) {
  cuda_on_host::copy16_async(to, from, valid);
}
inline void copies_close_group() { cuda_on_host::copies_close_group(); }
template <int kOpen>
void copies_wait() {
  cuda_on_host::copies_wait(kOpen);
}

void load_matrices(uint32_t (&r)[4], const void* row);
void load_matrices_transposed(uint32_t (&r)[4], const void* row);
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

inline float bits_to_float(uint32_t bits) { return std::bit_cast<float>(bits); }
float f16_to_float(uint16_t bits);
uint32_t pack_bf16(float low, float high);
uint32_t pack_f16(float low, float high);
inline uint32_t round_tf32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

}  // namespace kvsim::cuda
