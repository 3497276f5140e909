// Levels for the coordinates of a vector of random direction, as TurboQuant rounds
// (policies.md 11.1).
#include <mutex>

#include "sim/stages/quantize/number_format.hpp"

namespace kvsim::stages::quantize::sphere {
namespace {

constexpr int kCells = 4096;  // of the density on [-1, 1]
constexpr int kSteps = 1000;  // of Lloyd's iteration at most

/// The 2^bits levels with the least mean squared error for a coordinate of a random unit vector of
/// `size` numbers, whose density is proportional to (1 - x^2)^((size - 3) / 2).
std::vector<double> best_levels(int64_t size, int64_t bits) {
  const double power = (static_cast<double>(std::max<int64_t>(size, 3)) - 3) / 2;
  std::vector<double> mass(kCells + 1, 0), moment(kCells + 1, 0);
  const auto middle = [](int cell) { return (2.0 * cell + 1) / kCells - 1; };
  for (int cell = 0; cell < kCells; ++cell) {
    const auto next = static_cast<size_t>(cell) + 1;
    const double x = middle(cell), density = std::pow(1 - x * x, power);
    mass[next] = mass[next - 1] + density;
    moment[next] = moment[next - 1] + density * x;
  }
  const auto count = size_t{1} << bits;
  std::vector<double> levels(count);
  for (size_t k = 0; k < count; ++k) {  // quantiles
    const double wanted = (static_cast<double>(k) + 0.5) / static_cast<double>(count) * mass.back();
    levels[k] = middle(static_cast<int>(std::ranges::lower_bound(mass, wanted) - mass.begin()) - 1);
  }
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> moved = levels;
    size_t from = 0;
    for (size_t k = 0; k < count; ++k) {
      const double end = k + 1 < count ? (levels[k] + levels[k + 1]) / 2 : 1;
      const auto to = static_cast<size_t>(std::llround((end + 1) / 2 * kCells));
      if (mass[to] > mass[from]) moved[k] = (moment[to] - moment[from]) / (mass[to] - mass[from]);
      from = to;
    }
    if (moved == levels) break;
    levels = std::move(moved);
  }
  return levels;
}

const std::vector<double>& levels_of(int64_t size, int64_t bits) {
  static std::mutex one_at_a_time;
  static std::map<std::pair<int64_t, int64_t>, std::vector<double>> known;
  const std::lock_guard lock(one_at_a_time);
  auto& levels = known[{size, bits}];
  if (levels.empty()) levels = best_levels(size, bits);
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

}  // namespace
}  // namespace kvsim::stages::quantize::sphere
