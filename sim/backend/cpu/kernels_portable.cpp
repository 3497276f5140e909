// For every processor: no instruction set beyond what the compiler assumes by default.
#define KVSIM_ISA portable
#define KVSIM_ISA_NAME "portable"
#include "sim/backend/cpu/kernels.inc"

const kvsim::Kernels* kvsim::kernels_portable() { return &portable::kTable; }
