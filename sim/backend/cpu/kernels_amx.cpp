// For x86-64-v4 processors with matrix tiles of bfloat16; CMake compiles this file with
// -march=x86-64-v4 -mamx-tile -mamx-bf16.
#include "sim/backend/cpu/kernels.hpp"

#if defined(__x86_64__) && defined(__AMX_BF16__)
#define KVSIM_ISA amx
#define KVSIM_ISA_NAME "amx"
#define KVSIM_TILES
#include "sim/backend/cpu/kernels.inc"

const kvsim::Kernels* kvsim::kernels_amx() { return &amx::kTable; }
#else
const kvsim::Kernels* kvsim::kernels_amx() { return nullptr; }
#endif
