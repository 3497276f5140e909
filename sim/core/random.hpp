#pragma once
#include <cstdint>

namespace kvsim {

/// One step of SplitMix64: f(y) of policies.md 12.
constexpr uint64_t split_mix(uint64_t y) {
  uint64_t z = y + 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
static_assert(split_mix(0) == 0xE220A8397B1DCDAFull);

/// u(a, b, c, d) in [0, 1): a counter-based draw, the same whatever the order of evaluation.
constexpr double uniform(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  const uint64_t x = split_mix(split_mix(split_mix(split_mix(a) + b) + c) + d);
  return static_cast<double>(x >> 11) * 0x1p-53;
}

}  // namespace kvsim
