// Angles of numbers in pairs, of the pairs' lengths in pairs, and so on (policies.md 11.1).
#include <numbers>

#include "sim/core/tensor.hpp"
#include "sim/stages/quantize/number_format.hpp"

namespace kvsim::stages::quantize::polar {

constexpr int64_t kBlock = 16;
constexpr int kRounds = 4;         // 16 numbers, 8 lengths, 4, 2, 1
constexpr int64_t kBits = 4;       // of an angle of two numbers, which goes all around
constexpr int64_t kOfLengths = 2;  // of one of two lengths, which are not negative

/// Levels of an angle of two lengths, each that of 2^(round - 1) normal numbers: a density
/// proportional to sin(2a)^(2^(round - 1) - 1) in [0, pi / 2].
const std::vector<double>& levels_of(int round) {
  static const std::vector<std::vector<double>> levels = [] {
    std::vector<std::vector<double>> all(2);
    for (int later = 2; later <= kRounds; ++later) {
      const double power = std::pow(2, later - 1) - 1;
      all.push_back(best_levels([power](double a) { return std::pow(std::sin(2 * a), power); }, 0,
                                std::numbers::pi / 2, kOfLengths));
    }
    return all;
  }();
  return levels[round];
}

/// The middle of the part of the circle that the angle lies in.
double around(double angle) {
  const double step = 2 * std::numbers::pi / (1 << kBits);
  return (std::floor(angle / step) + 0.5) * step;
}

void round_block(std::span<float> block) {
  std::array<double, kBlock> length{};
  std::ranges::copy(block, length.begin());
  std::array<std::array<double, kBlock>, kRounds> angle{};
  for (int round = 1; round <= kRounds; ++round)
    for (size_t pair = 0; pair < size_t{kBlock} >> round; ++pair) {
      const double x = length[2 * pair], y = length[2 * pair + 1], own = std::atan2(y, x);
      angle[round - 1][pair] = round == 1 ? around(own) : nearest(levels_of(round), own);
      length[pair] = std::hypot(x, y);
    }
  constexpr double kMost = 65504;  // of float16
  length[0] = static_cast<double>(
      half_to_float(float_to_half(static_cast<float>(std::min(length[0], kMost)))));
  for (int round = kRounds; round >= 1; --round)
    for (size_t pair = size_t{kBlock} >> round; pair-- > 0;) {
      const double own = angle[round - 1][pair], whole = length[pair];
      length[2 * pair] = whole * std::cos(own);
      length[2 * pair + 1] = whole * std::sin(own);
    }
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<float>(length[i]);
}

void round_line(std::span<float> line, const NumberFormat::Context&) {
  for_each_block(line, kBlock, round_block);
}

int64_t bits_of(int64_t numbers, int64_t) {
  const int64_t angles = kBlock / 2 * kBits + (kBlock / 2 - 1) * kOfLengths;
  return blocks_of(numbers, kBlock) * (16 + angles);
}

const DeclareFormat polar({.name = "polar",
                           .meaning = "angles of 16 numbers, pair by pair, and their length",
                           .source = "PolarQuant",
                           .round = round_line,
                           .bits = bits_of});

}  // namespace kvsim::stages::quantize::polar
