// Levels for the coordinates of a vector of random direction, as TurboQuant rounds
// (policies.md 11.1).
#include <mutex>

#include "sim/stages/quantize/number_format.hpp"

namespace kvsim::stages::quantize::sphere {

/// For a coordinate of a random unit vector of `size` numbers, whose density is proportional to
/// (1 - x^2)^((size - 3) / 2).
std::vector<double> coordinate_levels(int64_t size, int64_t bits) {
  const double power = (static_cast<double>(std::max<int64_t>(size, 3)) - 3) / 2;
  return best_levels([power](double x) { return std::pow(1 - x * x, power); }, -1, 1, bits);
}

const std::vector<double>& levels_of(int64_t size, int64_t bits) {
  static std::mutex one_at_a_time;
  static std::map<std::pair<int64_t, int64_t>, std::vector<double>> known;
  const std::lock_guard lock(one_at_a_time);
  auto& levels = known[{size, bits}];
  if (levels.empty()) levels = coordinate_levels(size, bits);
  return levels;
}

/// The line's norm is stored in float32; its direction goes to the nearest levels.
void round_direction(std::span<float> line, int64_t bits) {
  double squares = 0;
  for (const float x : line) squares += static_cast<double>(x) * static_cast<double>(x);
  const double norm = std::sqrt(squares);
  if (norm == 0) return;
  const std::vector<double>& levels = levels_of(std::ssize(line), bits);
  for (float& x : line) {
    const double unit = static_cast<double>(x) / norm;
    x = static_cast<float>(norm * nearest(levels, unit));
  }
}

struct Spheres {
  Spheres() {
    for (int64_t bits = 1; bits <= 5; ++bits)
      DeclareFormat({.name = "sphere" + std::to_string(bits),
                     .meaning = std::to_string(bits) +
                                " bits for each coordinate of a direction, and the norm",
                     .source = "TurboQuant",
                     .round = [bits](std::span<float> line,
                                     const NumberFormat::Context&) { round_direction(line, bits); },
                     .bits = [bits](int64_t numbers, int64_t) { return numbers * bits + 32; }});
  }
};
const Spheres declared;

}  // namespace kvsim::stages::quantize::sphere
