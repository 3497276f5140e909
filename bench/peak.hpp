#pragma once

namespace kvsim::bench {

struct PeakLoop {
  float (*run)(long rounds, float factor) = nullptr;  ///< null: not compiled
  long operations = 0;                                ///< per round
};
PeakLoop peak_portable();
PeakLoop peak_v3();
PeakLoop peak_v4();

/// Seconds on the clock in use: the wall clock, or the processor time of the whole program, which
/// other programs on the machine disturb less but which says nothing about several threads.
double now();
void use_processor_time();

/// Multiply-adds in registers on every thread: operations per second / 1e9 of all threads together.
double peak_gflops();

}  // namespace kvsim::bench
