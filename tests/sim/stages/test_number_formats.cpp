// Forms of few bits (policies.md 11.1): numbers by hand, bytes by hand, and what any of them keeps
// to.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "sim/core/numbers.hpp"
#include "sim/stages/quantize/number_format.hpp"
#include "sim/stages/stages.hpp"

using namespace kvsim;

namespace {

std::vector<float> rounded(const char* name, std::vector<float> line, int64_t group = 32) {
  NumberFormat::Context with{.group = group};
  for (const float x : line) with.largest = std::max(with.largest, std::fabs(x));
  find_format(name)->round(line, with);
  return line;
}

double normal(uint64_t seed, uint64_t at) {
  return std::sqrt(-2 * std::log(1 - uniform(seed, at, 0, 0))) *
         std::cos(6.283185307179586 * uniform(seed, at, 1, 0));
}

std::vector<float> some(uint64_t seed, size_t count) {
  std::vector<float> made;
  for (size_t i = 0; i < count; ++i) made.push_back(static_cast<float>(normal(seed, i)));
  return made;
}

Settings settings(const char* keys, const char* values) {
  Settings made;
  for (const auto& [key, value] : std::map<std::string, std::string>{{"quantize", "formats"},
                                                                     {"quant_keys", keys},
                                                                     {"quant_values", values},
                                                                     {"quant_keys_axis", "entry"},
                                                                     {"quant_values_axis", "entry"},
                                                                     {"quant_keys_turn", "none"},
                                                                     {"quant_values_turn", "none"},
                                                                     {"quant_rope", "after"},
                                                                     {"quant_group", "32"},
                                                                     {"quant_residual", "0"}})
    made.set(key, value);
  return made;
}

}  // namespace

TEST_CASE("small floats go to the nearest, ties to even, and saturate", "[quantize][stages]") {
  // E4M3 between 16 and 32 has steps of 2; below 2^-6 steps of 2^-9.
  CHECK(rounded("fp8-e4m3", {17, 19, 18.9f, -448, 1000, 0.0009765625f, 0.0029296875f, 0}) ==
        std::vector<float>{16, 20, 18, -448, 448, 0, 0.00390625f, 0});
  CHECK(rounded("fp8-e5m2", {9, 11, 13, -70000}) == std::vector<float>{8, 12, 12, -57344});
}

TEST_CASE("mxfp4 has a power of two for 32 numbers, nvfp4 a float for 16", "[quantize][stages]") {
  // The largest is 24 = 6 * 4, so that the scale is 4: levels 0 2 4 6 8 12 16 24.
  CHECK(rounded("mxfp4", {24, -24, 1, 3, 5, 7, 10, 14, 20, 0.9f}) ==
        std::vector<float>{24, -24, 0, 4, 4, 8, 8, 16, 16, 0});
  // The largest of all is 448 * 6: the scale of all is 1, of the first block 448, of the second 1.
  std::vector<float> line(32, 0.0f);
  line[0] = 448 * 6;
  line[1] = 448;
  for (const size_t i : {16u, 17u, 18u}) line[i] = static_cast<float>(6 - 2 * (i - 16));
  line[18] = 2.4f;
  const auto found = rounded("nvfp4", line);
  CHECK(found[0] == 448 * 6);
  CHECK(found[1] == 448);
  CHECK(found[16] == 6);
  CHECK(found[17] == 4);
  CHECK(found[18] == 2);
}

TEST_CASE("llama.cpp's blocks: codes from the exact scale, numbers from the stored one",
          "[quantize][stages]") {
  // -8 has the code -8, so the scale is 1, and 7 is the largest code on the other side.
  CHECK(rounded("q4_0", {-8, 7.9f, 0.5f, -0.5f, 3.2f}) == std::vector<float>{-8, 7, 1, 0, 3});
  CHECK(rounded("q8_0", {127, -63.5f, 0.4f}) == std::vector<float>{127, -64, 0});
  CHECK(rounded("q5_1", {0, 31, 1.5f, 2.4f}) == std::vector<float>{0, 31, 2, 2});
  // 1/127 is no float16: the stored scale decides.
  CHECK(rounded("q8_0", {1})[0] == Approx(127 * 0.00787353515625).epsilon(1e-7));
}

TEST_CASE("symmetric codes have zero; directions are rounded and norms kept",
          "[quantize][stages]") {
  CHECK(rounded("symmetric2", {3, -3, 1, 2, 0}) == std::vector<float>{3, -3, 0, 3, 0});
  // One bit of a direction in d dimensions: two levels of the same size, E|x| of a coordinate.
  const auto found = rounded("sphere1", some(3, 64));
  std::set<float> sizes;
  for (const float x : found) sizes.insert(std::fabs(x));
  CHECK(*sizes.rbegin() - *sizes.begin() < 1e-3f * *sizes.begin());
  double squares = 0;
  for (const float x : some(3, 64)) squares += static_cast<double>(x) * static_cast<double>(x);
  CHECK(*sizes.begin() == Approx(std::sqrt(squares) * std::sqrt(2 / (M_PI * 64))).epsilon(0.01));
}

TEST_CASE("polar: angles of pairs, then of their lengths, and the length of all",
          "[quantize][stages]") {
  std::vector<std::set<int64_t>> seen(4);  // levels of the rounds behind the first, in 1e-4
  std::vector<std::vector<std::pair<double, double>>> angles(4);  // before and after
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const std::vector<float> line = some(seed, 16), found = rounded("polar", line);
    std::vector<double> x(line.begin(), line.end()), y(found.begin(), found.end());
    for (size_t round = 0; x.size() > 1; ++round) {
      std::vector<double> of_x, of_y;
      for (size_t i = 0; i < x.size(); i += 2) {
        const double before = std::atan2(x[i + 1], x[i]), after = std::atan2(y[i + 1], y[i]);
        of_x.push_back(std::hypot(x[i], x[i + 1]));
        of_y.push_back(std::hypot(y[i], y[i + 1]));
        if (round > 0) {
          seen[round].insert(std::llround(after * 1e4));
          angles[round].push_back({before, after});
          continue;
        }
        const double part = after / (M_PI / 8) - 0.5;
        CHECK(part == Approx(std::round(part)).margin(1e-4));
        CHECK(std::fabs(before - after) <= M_PI / 16 + 1e-4);
      }
      x = of_x;
      y = of_y;
    }
    CHECK(y[0] == Approx(x[0]).epsilon(1.0 / 2048));
  }
  for (size_t round = 1; round < 4; ++round) {  // each level is the mean of what is nearest to it
    REQUIRE(seen[round].size() == 4);
    std::vector<double> levels;
    for (const int64_t level : seen[round]) levels.push_back(static_cast<double>(level) / 1e4);
    for (size_t k = 0; k < 4; ++k) {
      const double from = k == 0 ? 0 : (levels[k - 1] + levels[k]) / 2;
      const double to = k == 3 ? M_PI / 2 : (levels[k] + levels[k + 1]) / 2;
      double mass = 0, moment = 0;
      for (int cell = 0; cell < 20000; ++cell) {
        const double a = from + (to - from) * (cell + 0.5) / 20000;
        const double density = std::pow(std::sin(2 * a), std::pow(2, round) - 1);
        mass += density;
        moment += density * a;
      }
      CHECK(levels[k] == Approx(moment / mass).margin(1e-3));
    }
    for (const auto& [before, after] : angles[round])  // each angle goes to the nearest
      for (const double level : levels)
        CHECK(std::fabs(after - before) <= std::fabs(level - before) + 2e-4);
  }
}

TEST_CASE("bits by hand", "[quantize][stages]") {
  const std::vector<std::tuple<const char*, int64_t, int64_t>> by_hand = {
      {"int4", 80, 80 * 4 + 3 * 32}, {"symmetric8", 80, 80 * 8 + 3 * 16},
      {"fp8-e4m3", 80, 640},         {"nvfp4", 80, 80 * 4 + 5 * 8},
      {"mxfp4", 80, 80 * 4 + 3 * 8}, {"q8_0", 64, 2 * 34 * 8},
      {"q5_1", 64, 2 * 24 * 8},      {"q5_0", 64, 2 * 22 * 8},
      {"q4_1", 64, 2 * 20 * 8},      {"q4_0", 64, 2 * 18 * 8},
      {"sphere2", 80, 80 * 2 + 32},  {"polar", 80, 5 * (16 + 8 * 4 + 7 * 2)},
      {"polar", 20, 2 * 62}};
  for (const auto& [name, numbers, bits] : by_hand) {
    CAPTURE(name);
    CHECK(find_format(name)->bits(numbers, 32) == bits);
  }
  // Keys of 3 entries of 16 in nvfp4, values of 8 at 8 bits in groups of 32.
  const Settings both = settings("nvfp4", "int8");
  const QuantizedCount count = quantizer(both).count(both, 3, 16, 8);
  CHECK(count.numbers == 3 * (16 + 8));
  CHECK(count.bits == 32 + 3 * (16 * 4 + 8) + 3 * (8 * 8 + 32));
  const Settings half = settings("none", "fp8-e5m2");
  CHECK(quantizer(half).count(half, 3, 16, 8).numbers == 3 * 8);
}

TEST_CASE("every format: a line of zeros stays, errors shrink with bits, signs are kept",
          "[quantize][stages]") {
  for (const NumberFormat* const format : number_formats()) {
    CAPTURE(format->name);
    for (const float x : rounded(format->name.c_str(), std::vector<float>(40, 0.0f))) CHECK(x == 0);
    const std::vector<float> line = some(7, 96), found = rounded(format->name.c_str(), line);
    double error = 0, all = 0;
    for (size_t i = 0; i < line.size(); ++i) {
      CHECK(std::isfinite(found[i]));
      const double away = static_cast<double>(found[i]) - static_cast<double>(line[i]);
      error += away * away;
      all += static_cast<double>(line[i]) * static_cast<double>(line[i]);
    }
    const double bits = static_cast<double>(format->bits(96, 32)) / 96;
    // Twice a bit's share of a group's range: no format is worse than a step of 8 / 2^bits or so.
    CHECK(std::sqrt(error / all) < 8 / std::pow(2, std::floor(std::min(bits, 5.0))));
  }
}

TEST_CASE("rotations are orthogonal and undone; rounding after one differs", "[quantize][stages]") {
  using Kind = Orthogonal::Kind;
  for (const Kind kind : {Kind::none, Kind::hadamard, Kind::random})
    for (const size_t size : {size_t{64}, size_t{80}, size_t{7}}) {
      CAPTURE(static_cast<int>(kind), size);
      const Orthogonal turn(kind, static_cast<int64_t>(size));
      const std::vector<float> line = some(11, size);
      std::vector<float> turned = line;
      turn.apply(turned);
      double before = 0, after = 0;
      for (size_t i = 0; i < size; ++i) {
        before += static_cast<double>(line[i]) * static_cast<double>(line[i]);
        after += static_cast<double>(turned[i]) * static_cast<double>(turned[i]);
      }
      CHECK(after == Approx(before).epsilon(1e-5));
      if (kind != Kind::none && size == 64)
        CHECK(std::fabs(turned[0]) != Approx(std::fabs(line[0])));
      turn.undo(turned);
      for (size_t i = 0; i < size; ++i) CHECK(turned[i] == Approx(line[i]).margin(1e-5));
    }
}

TEST_CASE("a key with one large channel loses less behind a rotation", "[quantize][stages]") {
  const auto error = [](const char* rotate) {
    Settings values = settings("int4", "none");
    values.set("quant_keys_turn", rotate);
    Table<float> k(8, 64), v(8, 4);
    for (int64_t r = 0; r < 8; ++r)
      for (int64_t c = 0; c < 64; ++c)
        k(r, c) = static_cast<float>(normal(5, static_cast<uint64_t>(64 * r + c)) +
                                     (c == 3 ? 40.0 : 0.0));
    const Table<float> whole = k;
    quantizer(values).apply(values, {.k = k, .v = v, .positions = {}});
    double sum = 0;
    for (size_t i = 0; i < k.values().size(); ++i) {
      const double away = static_cast<double>(k.values()[i] - whole.values()[i]);
      sum += away * away;
    }
    return sum;
  };
  CHECK(error("hadamard") < 0.5 * error("none"));
  CHECK(error("random") < 0.5 * error("none"));
}

TEST_CASE("keys may be rounded before their rotation by position", "[quantize][stages]") {
  Settings values = settings("int3", "none");
  values.set("quant_rope", "before");
  CHECK(quantizer(values).turns_keys(values));
  const Rotation rope{.inv_freq = {1.0, 0.1}};
  Table<float> k(3, 4), v(3, 2);
  for (size_t i = 0; i < 12; ++i) k.values()[i] = static_cast<float>(normal(9, i));
  const std::vector<uint32_t> positions = {2, 5, 11};
  // By hand: every key turned back, rounded as a line, turned to its position.
  Table<float> expected = k;
  RotationMemory memory;
  for (int64_t r = 0; r < 3; ++r) {
    const auto at = static_cast<int64_t>(positions[static_cast<size_t>(r)]);
    memory.rotate(rope, -at, expected.row(r));
    std::vector<float> line(expected.row(r).begin(), expected.row(r).end());
    line = rounded("int3", line);
    std::ranges::copy(line, expected.row(r).begin());
    memory.rotate(rope, at, expected.row(r));
  }
  quantizer(values).apply(values, {.k = k, .v = v, .positions = positions, .rope = &rope});
  for (size_t i = 0; i < 12; ++i) CHECK(k.values()[i] == Approx(expected.values()[i]).margin(1e-6));
}
