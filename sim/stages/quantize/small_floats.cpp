// Floating-point numbers of 8 and 4 bits, as engines store caches (policies.md 11.1).

#include "sim/stages/quantize/number_format.hpp"

namespace kvsim::stages::quantize::small_floats {

/// A float type: bits of the mantissa, exponent of the least normal number, largest number.
struct SmallFloat {
  int mantissa;
  int least_exponent;
  float largest;

  /// The nearest of its numbers, ties to even; beyond the largest, the largest.
  float nearest(float x) const {
    const float size = std::fabs(x);
    if (size >= largest) return std::copysign(largest, x);
    const int exponent = size == 0 ? least_exponent : std::max(std::ilogb(size), least_exponent);
    const float step = std::ldexp(1.0f, exponent - mantissa);
    return std::copysign(std::min(std::nearbyint(size / step) * step, largest), x);
  }
};
constexpr SmallFloat kE4m3{3, -6, 448}, kE5m2{2, -14, 57344}, kE2m1{1, 0, 6};

void round_scaled(std::span<float> numbers, const SmallFloat& type, float scale) {
  for (float& x : numbers) x = scale == 0 ? 0.0f : scale * type.nearest(x / scale);
}

NumberFormat plain(const char* name, const char* meaning, const SmallFloat& type) {
  return {.name = name,
          .meaning = meaning,
          .source = "FP8 formats",
          .round = [type](std::span<float> line,
                          const NumberFormat::Context&) { round_scaled(line, type, 1); },
          .bits = [](int64_t numbers, int64_t) { return 8 * numbers; }};
}
const DeclareFormat e4m3(plain("fp8-e4m3", "8-bit floats to 448, no scale", kE4m3));
const DeclareFormat e5m2(plain("fp8-e5m2", "8-bit floats to 57344, no scale", kE5m2));

/// Blocks of 16 with a scale in E4M3, and a scale in float32 for all of them.
constexpr int64_t kNvBlock = 16;
const DeclareFormat nvfp4({.name = "nvfp4",
                           .meaning = "4-bit floats, an 8-bit scale for 16 numbers and one for all",
                           .source = "NVFP4",
                           .round =
                               [](std::span<float> line, const NumberFormat::Context& with) {
  const float whole = with.largest / (kE4m3.largest * kE2m1.largest);
  for_each_block(line, kNvBlock, [&](std::span<float> block) {
    const float own = whole == 0 ? 0 : largest_of(block) / kE2m1.largest / whole;
    round_scaled(block, kE2m1, whole * kE4m3.nearest(own));
  });
                           },
                           .bits =
                               [](int64_t numbers, int64_t) {
  return 4 * numbers + 8 * blocks_of(numbers, kNvBlock);
                           },
                          .shared_bits = 32});

/// Blocks of 32 whose scale is a power of two: that of the largest number over that of 4.
constexpr int64_t kMxBlock = 32;
constexpr int kMxExponent = 2;  // of E2M1's largest power of two
const DeclareFormat mxfp4({.name = "mxfp4",
                           .meaning = "4-bit floats, a power of two as the scale of 32 numbers",
                           .source = "OCP microscaling",
                           .round =
                               [](std::span<float> line, const NumberFormat::Context&) {
  for_each_block(line, kMxBlock, [](std::span<float> block) {
    const float largest = largest_of(block);
    round_scaled(block, kE2m1,
                 largest == 0 ? 0 : std::ldexp(1.0f, std::ilogb(largest) - kMxExponent));
  });
                           },
                           .bits =
                               [](int64_t numbers, int64_t) {
  return 4 * numbers + 8 * blocks_of(numbers, kMxBlock);
                           }});

}  // namespace kvsim::stages::quantize::small_floats
