// GCC calls __sanitizer_cov_trace_pc() at each block of code; libFuzzer has one of its own, which
// without counters takes no input for interesting: the linker keeps this one.
#include <cstdint>

namespace {

constexpr uintptr_t kCounters = uintptr_t{1} << 16;
uint8_t counters[kCounters];

}  // namespace

extern "C" void __sanitizer_cov_8bit_counters_init(uint8_t* begin, uint8_t* end);

extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& counter = counters[(place * 0x9E3779B97F4A7C15u) >> 48];
  if (counter != 255) ++counter;
}

namespace {
[[maybe_unused]] const bool told = (__sanitizer_cov_8bit_counters_init(counters,
                                                                       counters + kCounters),
                                    true);
}  // namespace
