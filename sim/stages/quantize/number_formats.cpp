#include <Eigen/Core>
#include <mutex>
#include <numbers>

#include "sim/core/tensor.hpp"
#include "sim/stages/quantize/number_format.hpp"

namespace kvsim {
namespace {

std::map<std::string, NumberFormat, std::less<>>& formats() {
  static std::map<std::string, NumberFormat, std::less<>> all;
  return all;
}

}  // namespace

std::vector<const NumberFormat*> number_formats() {
  std::vector<const NumberFormat*> all;
  for (const auto& [name, format] : formats()) all.push_back(&format);
  return all;
}

const NumberFormat* find_format(std::string_view name) {
  const auto found = formats().find(name);
  return found == formats().end() ? nullptr : &found->second;
}

}  // namespace kvsim

namespace kvsim::stages::quantize::forms {

/// Adds a format while the program starts.
bool declare(NumberFormat format) {
  const std::string name = format.name;
  if (!formats().emplace(name, std::move(format)).second)
    throw std::logic_error("two formats are called " + name);
  return true;
}

/// The 2^bits levels with the least mean squared error for a number in [low, high] with such a
/// density, ascending.
std::vector<double> best_levels(const std::function<double(double)>& density, double low,
                                double high, int64_t bits) {
  constexpr int kCells = 4096;  // of the density
  constexpr int kSteps = 1000;  // of Lloyd's iteration at most
  std::vector<double> mass(kCells + 1, 0), moment(kCells + 1, 0);
  const auto middle = [&](int cell) { return low + (high - low) * (cell + 0.5) / kCells; };
  for (int cell = 0; cell < kCells; ++cell) {
    const auto next = static_cast<size_t>(cell) + 1;
    const double own = density(middle(cell));
    mass[next] = mass[next - 1] + own;
    moment[next] = moment[next - 1] + own * middle(cell);
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
      const double end = k + 1 < count ? (levels[k] + levels[k + 1]) / 2 : high;
      const auto to = static_cast<size_t>(std::llround((end - low) / (high - low) * kCells));
      if (mass[to] > mass[from]) moved[k] = (moment[to] - moment[from]) / (mass[to] - mass[from]);
      from = to;
    }
    if (moved == levels) break;
    levels = std::move(moved);
  }
  return levels;
}

// Integers of a few bits with a scale for each group (policies.md 11.1).

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

template <class Round>
NumberFormat integers(const std::string& kind, int64_t bits, const char* meaning,
                      const char* source, int64_t group_bits, Round round) {
  return {.name = kind + std::to_string(bits),
          .meaning = std::to_string(bits) + meaning,
          .source = source,
          .round =
              [=](std::span<float> line, const NumberFormat::Context& with) {
    for_each_block(line, with.group, [&](std::span<float> group) { round(group, bits); });
          },
          .bits =
              [=](int64_t numbers, int64_t group) {
    return numbers * bits + group_bits * blocks_of(numbers, group);
          }};
}
const bool integers_declared = [] {
  for (int64_t bits = 1; bits <= 8; ++bits)
    declare(integers("int", bits, " bits between the least and the largest of a group", "KIVI", 32,
                     round_group));
  for (int64_t bits = 2; bits <= 8; ++bits)
    declare(integers("symmetric", bits, " bits of both signs, up to the largest of a group",
                     "kvsim", 16, round_symmetric));
  return true;
}();

// Blocks of 32 numbers as llama.cpp stores a cache. Scales are float16 there: codes follow from the
// exact scale, and numbers from the stored one.

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
const bool q8_0_declared = declare(
    blocks("q8_0", "8 bits, a scale for 32 numbers", 8, 16, round_eight));
const bool q5_1_declared = declare(blocks("q5_1", "5 bits, scale and least of 32 numbers", 5, 32,
                                          [](std::span<float> block) { round_between(block, 5); }));
const bool q5_0_declared = declare(blocks("q5_0", "5 bits, a scale for 32 numbers", 5, 16,
                                          [](std::span<float> block) { round_signed(block, 5); }));
const bool q4_1_declared = declare(blocks("q4_1", "4 bits, scale and least of 32 numbers", 4, 32,
                                          [](std::span<float> block) { round_between(block, 4); }));
const bool q4_0_declared = declare(blocks("q4_0", "4 bits, a scale for 32 numbers", 4, 16,
                                          [](std::span<float> block) { round_signed(block, 4); }));

// Floating-point numbers of 8 and 4 bits, as engines store caches.

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
const bool e4m3_declared = declare(plain("fp8-e4m3", "8-bit floats to 448, no scale", kE4m3));
const bool e5m2_declared = declare(plain("fp8-e5m2", "8-bit floats to 57344, no scale", kE5m2));

/// Blocks of 16 with a scale in E4M3, and a scale in float32 for all of them.
constexpr int64_t kNvBlock = 16;
const bool nvfp4_declared = declare(
    {.name = "nvfp4",
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
     .bits = [](int64_t numbers,
                int64_t) { return 4 * numbers + 8 * blocks_of(numbers, kNvBlock); },
     .shared_bits = 32});

/// Blocks of 32 whose scale is a power of two: that of the largest number over that of 4.
constexpr int64_t kMxBlock = 32;
constexpr int kMxExponent = 2;  // of E2M1's largest power of two
const bool mxfp4_declared = declare(
    {.name = "mxfp4",
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
     .bits = [](int64_t numbers,
                int64_t) { return 4 * numbers + 8 * blocks_of(numbers, kMxBlock); }});

// Angles of numbers in pairs, of the pairs' lengths in pairs, and so on.

constexpr int64_t kPolarBlock = 16;
constexpr int kRounds = 4;         // 16 numbers, 8 lengths, 4, 2, 1
constexpr int64_t kAngleBits = 4;  // of an angle of two numbers, which goes all around
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
  const double step = 2 * std::numbers::pi / (1 << kAngleBits);
  return (std::floor(angle / step) + 0.5) * step;
}

void round_block(std::span<float> block) {
  std::array<double, kPolarBlock> length{};
  std::ranges::copy(block, length.begin());
  std::array<std::array<double, kPolarBlock>, kRounds> angle{};
  for (int round = 1; round <= kRounds; ++round)
    for (size_t pair = 0; pair < size_t{kPolarBlock} >> round; ++pair) {
      const double x = length[2 * pair], y = length[2 * pair + 1], own = std::atan2(y, x);
      angle[round - 1][pair] = round == 1 ? around(own) : nearest(levels_of(round), own);
      length[pair] = std::hypot(x, y);
    }
  constexpr double kMost = 65504;  // of float16
  length[0] = static_cast<double>(
      half_to_float(float_to_half(static_cast<float>(std::min(length[0], kMost)))));
  for (int round = kRounds; round >= 1; --round)
    for (size_t pair = size_t{kPolarBlock} >> round; pair-- > 0;) {
      const double own = angle[round - 1][pair], whole = length[pair];
      length[2 * pair] = whole * std::cos(own);
      length[2 * pair + 1] = whole * std::sin(own);
    }
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<float>(length[i]);
}

void round_line(std::span<float> line, const NumberFormat::Context&) {
  for_each_block(line, kPolarBlock, round_block);
}

int64_t bits_of(int64_t numbers, int64_t) {
  const int64_t angles = kPolarBlock / 2 * kAngleBits + (kPolarBlock / 2 - 1) * kOfLengths;
  return blocks_of(numbers, kPolarBlock) * (16 + angles);
}

const bool polar_declared = declare(
    {.name = "polar",
     .meaning = "angles of 16 numbers, pair by pair, and their length",
     .source = "PolarQuant",
     .round = round_line,
     .bits = bits_of});

// Levels for the coordinates of a vector of random direction, as TurboQuant rounds.

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

const bool spheres_declared = [] {
  for (int64_t bits = 1; bits <= 5; ++bits)
    declare(
        {.name = "sphere" + std::to_string(bits),
         .meaning = std::to_string(bits) + " bits for each coordinate of a direction, and the norm",
         .source = "TurboQuant",
         .round = [bits](std::span<float> line,
                         const NumberFormat::Context&) { round_direction(line, bits); },
         .bits = [bits](int64_t numbers, int64_t) { return numbers * bits + 32; }});
  return true;
}();

}  // namespace kvsim::stages::quantize::forms
