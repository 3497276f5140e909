// Integers of a few bits with a scale for each group (policies.md 11.1).

#include "sim/stages/quantize/number_format.hpp"

namespace kvsim::stages::quantize::integers {

/// Rounds a group to 2^bits even steps between its least and its largest number (policies.md 11).
void round_group(std::span<float> group, int64_t bits) {
  const auto [lo, hi] = std::ranges::minmax(group);
  const auto top = static_cast<float>((1 << bits) - 1);
  const float step = (hi - lo) / top;
  for (float& x : group)
    x = step == 0 ? lo : lo + step * std::clamp(std::nearbyint((x - lo) / step), 0.0f, top);
}

/// The scale maps the largest magnitude to the largest code; codes of both signs.
void round_symmetric(std::span<float> group, int64_t bits) {
  const auto top = static_cast<float>((1 << (bits - 1)) - 1);
  const float step = largest_of(group) / top;
  if (step == 0) return;
  for (float& x : group) x = step * std::clamp(std::nearbyint(x / step), -top, top);
}

struct Integers {
  Integers() {
    for (int64_t bits = 1; bits <= 8; ++bits) {
      const std::string count = std::to_string(bits);
      DeclareFormat({.name = "int" + count,
                     .meaning = count + " bits between the least and the largest of a group",
                     .source = "KIVI",
                     .round =
                         [bits](std::span<float> line, const NumberFormat::Context& with) {
        for_each_block(line, with.group, [&](std::span<float> group) { round_group(group, bits); });
                     },
                     .bits =
                         [bits](int64_t numbers, int64_t group) {
        return numbers * bits + 32 * blocks_of(numbers, group);
                     }});
      if (bits == 1) continue;
      DeclareFormat({.name = "symmetric" + count,
                     .meaning = count + " bits of both signs, up to the largest of a group",
                     .source = "kvsim",
                     .round =
                         [bits](std::span<float> line, const NumberFormat::Context& with) {
        for_each_block(line, with.group,
                       [&](std::span<float> group) { round_symmetric(group, bits); });
                     },
                     .bits =
                         [bits](int64_t numbers, int64_t group) {
        return numbers * bits + 16 * blocks_of(numbers, group);
                     }});
    }
  }
};
const Integers declared;

}  // namespace kvsim::stages::quantize::integers
