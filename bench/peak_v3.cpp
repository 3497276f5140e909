#include "bench/peak.hpp"

#if defined(__AVX2__)
#define KVSIM_ISA v3
#include "bench/peak.inc"

kvsim::bench::PeakLoop kvsim::bench::peak_v3() { return {v3::multiply_adds, v3::kOperations}; }
#else
kvsim::bench::PeakLoop kvsim::bench::peak_v3() { return {}; }
#endif
