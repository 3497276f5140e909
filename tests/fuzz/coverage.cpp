// GCC calls __sanitizer_cov_trace_pc() at each block of code; libFuzzer has one of its own, which
// without counters takes no input for interesting: the linker keeps this one.
#include <sys/mman.h>

#include <cstdint>

namespace {

constexpr uintptr_t kCounters = uintptr_t{1} << 16;
constinit uint8_t* counters = nullptr;  // shared with the process that reads files (reader.hpp)

}  // namespace

extern "C" void __sanitizer_cov_8bit_counters_init(uint8_t* begin, uint8_t* end);

extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() {
  if (counters == nullptr) return;  // before main
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& counter = counters[(place * 0x9E3779B97F4A7C15u) >> 48];
  if (counter != 255) ++counter;
}

// Of real numbers, which libFuzzer does not look at.
extern "C" void __sanitizer_cov_trace_cmpf(float, float) {}
extern "C" void __sanitizer_cov_trace_cmpd(double, double) {}

namespace {
[[maybe_unused]] const bool told = [] {
  counters = static_cast<uint8_t*>(
      mmap(nullptr, kCounters, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  __sanitizer_cov_8bit_counters_init(counters, counters + kCounters);
  return true;
}();
}  // namespace
