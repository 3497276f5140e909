#include "bench/peak.hpp"

#define KVSIM_ISA portable
#include "bench/peak.inc"

kvsim::bench::PeakLoop kvsim::bench::peak_portable() {
  return {portable::multiply_adds, portable::kOperations};
}
