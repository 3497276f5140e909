// For x86-64-v3 processors; CMake compiles this file with -march=x86-64-v3.
#include "sim/backend/cpu/kernels.hpp"

#if defined(__x86_64__) && defined(__AVX2__)
#define KVSIM_ISA v3
#define KVSIM_ISA_NAME "v3"
#include "sim/backend/cpu/kernels.inc"

const kvsim::Kernels* kvsim::kernels_v3() { return &v3::kTable; }
#else
const kvsim::Kernels* kvsim::kernels_v3() { return nullptr; }
#endif
