// For x86-64-v2 processors; CMake compiles this file with -march=x86-64-v2.
#include "sim/backend/cpu/kernels.hpp"

#if defined(__x86_64__) && defined(__SSE4_2__)
#define KVSIM_ISA v2
#define KVSIM_ISA_NAME "v2"
#include "sim/backend/cpu/kernels.inc"

const kvsim::Kernels* kvsim::kernels_v2() { return &v2::kTable; }
#else
const kvsim::Kernels* kvsim::kernels_v2() { return nullptr; }
#endif
