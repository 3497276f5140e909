// For x86-64-v4 processors; CMake compiles this file with -march=x86-64-v4.
#include "sim/backend/cpu/kernels.hpp"

#if defined(__x86_64__) && defined(__AVX512F__)
#define KVSIM_ISA v4
#define KVSIM_ISA_NAME "v4"
#include "sim/backend/cpu/kernels.inc"

const kvsim::Kernels* kvsim::kernels_v4() { return &v4::kTable; }
#else
const kvsim::Kernels* kvsim::kernels_v4() { return nullptr; }
#endif
