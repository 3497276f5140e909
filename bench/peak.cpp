#include "bench/peak.hpp"

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>

#include "sim/backend/cpu/kernels.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim::bench {

namespace {
bool processor_time = false;
}

void use_processor_time() { processor_time = true; }

double now() {
  if (processor_time) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

double peak_gflops() {
  const std::string isa = choose_kernels().isa;
  const PeakLoop loop = isa.starts_with("v4") ? peak_v4()
                        : isa == "v3"         ? peak_v3()
                                              : peak_portable();
  constexpr long kRounds = 4'000'000;
  const int64_t tasks = 4 * threads();
  volatile float keep = 0;
  const double begin = now();
  parallel_for(tasks, [&](int64_t) { keep = loop.run(kRounds, 0.999f); });
  return static_cast<double>(tasks * loop.operations) * kRounds / (now() - begin) / 1e9;
}

}  // namespace kvsim::bench
