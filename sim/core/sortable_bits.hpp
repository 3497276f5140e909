#pragma once
#include <bit>
#include <cstdint>

namespace kvsim {

/// A number that is larger for larger values; -0 is 0. Not for NaN.
inline uint64_t sortable_bits(double value) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  const uint64_t bits = std::bit_cast<uint64_t>(value + 0.0);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

}  // namespace kvsim
