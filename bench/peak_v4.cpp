#include "bench/peak.hpp"

#if defined(__AVX512F__)
#define KVSIM_ISA v4
#include "bench/peak.inc"

kvsim::bench::PeakLoop kvsim::bench::peak_v4() { return {v4::multiply_adds, v4::kOperations}; }
#else
kvsim::bench::PeakLoop kvsim::bench::peak_v4() { return {}; }
#endif
