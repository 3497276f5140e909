// For x86-64-v4 processors with bfloat16 products; CMake compiles this file with
// -march=x86-64-v4 -mavx512bf16.
#include "sim/backend/cpu/kernels.hpp"

#if defined(__x86_64__) && defined(__AVX512BF16__)
#define KVSIM_ISA v4_bf16
#define KVSIM_ISA_NAME "v4-bf16"
#include "sim/backend/cpu/kernels.inc"

const kvsim::Kernels* kvsim::kernels_v4_bf16() { return &v4_bf16::kTable; }
#else
const kvsim::Kernels* kvsim::kernels_v4_bf16() { return nullptr; }
#endif
