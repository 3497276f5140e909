// Blocks of 32 numbers as llama.cpp stores a cache (policies.md 11.1). Scales are float16 there:
// codes follow from the exact scale, and numbers from the stored one.
#include <Eigen/Core>

#include "sim/stages/quantize/number_format.hpp"

namespace kvsim::stages::quantize::ggml_blocks {

constexpr int64_t kBlock = 32;

float half(float x) { return static_cast<float>(static_cast<Eigen::half>(x)); }

/// A scale alone: the number of largest magnitude, with its sign, has the code -2^(bits - 1).
void round_signed(std::span<float> block, int bits) {
  const float extreme = *std::ranges::max_element(block, {}, [](float x) { return std::fabs(x); });
  const auto zero = static_cast<float>(1 << (bits - 1));
  const float scale = extreme / -zero, inverse = scale == 0 ? 0 : 1 / scale;
  for (float& x : block)
    x = half(scale) * (std::min(2 * zero - 1, std::trunc(x * inverse + zero + 0.5f)) - zero);
}

/// A scale and the least number.
void round_between(std::span<float> block, int bits) {
  const auto [lo, hi] = std::ranges::minmax(block);
  const auto top = static_cast<float>((1 << bits) - 1);
  const float scale = (hi - lo) / top, inverse = scale == 0 ? 0 : 1 / scale;
  for (float& x : block)
    x = half(scale) * std::clamp(std::trunc((x - lo) * inverse + 0.5f), 0.0f, top) + half(lo);
}

/// A scale alone: the largest magnitude has the code 127.
void round_eight(std::span<float> block) {
  const float scale = largest_of(block) / 127, inverse = scale == 0 ? 0 : 1 / scale;
  for (float& x : block) x = half(scale) * std::round(x * inverse);
}

template <class Round>
NumberFormat blocks(const char* name, const char* meaning, int64_t number_bits, int64_t block_bits,
                    Round round) {
  return {.name = name,
          .meaning = meaning,
          .source = "llama.cpp",
          .round = [round](std::span<float> line,
                           const NumberFormat::Context&) { for_each_block(line, kBlock, round); },
          .bits =
              [=](int64_t numbers, int64_t) {
    return number_bits * numbers + block_bits * blocks_of(numbers, kBlock);
          }};
}
const DeclareFormat q8_0(blocks("q8_0", "8 bits, a scale for 32 numbers", 8, 16, round_eight));
const DeclareFormat q5_1(blocks("q5_1", "5 bits, scale and least of 32 numbers", 5, 32,
                                [](std::span<float> block) { round_between(block, 5); }));
const DeclareFormat q5_0(blocks("q5_0", "5 bits, a scale for 32 numbers", 5, 16,
                                [](std::span<float> block) { round_signed(block, 5); }));
const DeclareFormat q4_1(blocks("q4_1", "4 bits, scale and least of 32 numbers", 4, 32,
                                [](std::span<float> block) { round_between(block, 4); }));
const DeclareFormat q4_0(blocks("q4_0", "4 bits, a scale for 32 numbers", 4, 16,
                                [](std::span<float> block) { round_signed(block, 4); }));

}  // namespace kvsim::stages::quantize::ggml_blocks
