#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "sim/core/numbers.hpp"
#include "sim/core/tensor.hpp"

using namespace kvsim;

namespace {

/// A binary floating-point pattern read by its definition, in double.
double by_definition(uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = (bits & ((1 << fraction_bits) - 1)) * std::ldexp(1.0, -fraction_bits);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * fraction * std::ldexp(1.0, 1 - bias);
  return sign * (1 + fraction) * std::ldexp(1.0, exponent - bias);
}

struct Format {
  ElementType type;
  int exponent_bits;
  int fraction_bits;
};

std::vector<uint16_t> all_patterns() {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  return bits;
}

/// The pattern nearest to `value` by searching all finite patterns; ties go to the even one.
uint16_t nearest_by_search(const Format& format, const std::vector<double>& values, double value) {
  const auto top = static_cast<uint16_t>(((1 << format.exponent_bits) - 1) << format.fraction_bits);
  const double size = std::fabs(value);
  // Patterns of one sign ascend with their values; infinity stands where the next number would.
  const double beyond = values[top - 1] + (values[top - 1] - values[top - 2]);
  uint16_t low = 0, high = top;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (values[middle] <= size ? low : high) = middle;
  }
  const double above = high == top ? beyond : values[high];
  const double down = size - values[low], up = above - size;
  uint16_t best = down < up ? low : up < down ? high : (low % 2 == 0 ? low : high);
  if (size >= beyond) best = top;
  return static_cast<uint16_t>(best | (std::signbit(value) ? 0x8000 : 0));
}

}  // namespace

TEST_CASE("every 16-bit pattern widens to the number that its format defines", "[core]") {
  const Format format = GENERATE(Format{ElementType::float16, 5, 10},
                                 Format{ElementType::bfloat16, 8, 7});
  const std::vector<uint16_t> bits = all_patterns();
  std::vector<float> wide(bits.size());
  widen(format.type, bits.data(), 65536, wide.data());
  int wrong = 0;
  for (size_t i = 0; i < bits.size(); ++i) {
    const double expected = by_definition(bits[i], format.exponent_bits, format.fraction_bits);
    const bool right = std::isnan(expected)
                           ? std::isnan(wide[i])
                           : wide[i] == expected && std::signbit(wide[i]) == std::signbit(expected);
    wrong += right ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("bulk and portable float16 conversions agree on every pattern", "[core]") {
  const std::vector<uint16_t> bits = all_patterns();
  std::vector<float> wide(bits.size());
  std::vector<uint16_t> back(bits.size());
  widen(ElementType::float16, bits.data(), 65536, wide.data());
  narrow(ElementType::float16, wide.data(), 65536, back.data());
  int wrong = 0;
  for (size_t i = 0; i < bits.size(); ++i) {
    const bool same = std::bit_cast<uint32_t>(half_to_float(bits[i])) ==
                      std::bit_cast<uint32_t>(wide[i]);
    const bool round = std::isnan(wide[i]) ? (back[i] & 0x7E00) == 0x7E00 : back[i] == bits[i];
    wrong += same && round && float_to_half(wide[i]) == back[i] ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("narrowing rounds to the nearest pattern, ties to even", "[core]") {
  const Format format = GENERATE(Format{ElementType::float16, 5, 10},
                                 Format{ElementType::bfloat16, 8, 7});
  std::vector<double> values(65536);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = by_definition(static_cast<uint16_t>(i), format.exponent_bits, format.fraction_bits);
  std::vector<float> floats = {
      0.0f,       -0.0f,   65504.0f,    65519.9f, 65520.0f,        65536.0f,
      1e-8f,      -3e-8f,  2.98e-8f,    0x1p-25f, 0x1.000002p-25f, 0x1p-24f,
      0x1.8p-24f, 3.4e38f, 0x1.ffp127f, 1e-40f,   -1e-45f};
  for (uint64_t i = 0; i < 20000; ++i) {  // random bits, and midpoints between neighbours
    const auto bits = static_cast<uint32_t>(split_mix(i));
    const float value = std::bit_cast<float>(bits);
    if (std::isfinite(value)) floats.push_back(value);
    const uint16_t pattern = static_cast<uint16_t>(split_mix(i) >> 40);
    const double a = values[pattern], b = values[static_cast<uint16_t>(pattern + 1)];
    if (std::isfinite(a) && std::isfinite(b)) floats.push_back(static_cast<float>((a + b) / 2));
  }
  std::vector<uint16_t> narrowed(floats.size());
  narrow(format.type, floats.data(), static_cast<int64_t>(floats.size()), narrowed.data());
  int wrong = 0;
  for (size_t i = 0; i < floats.size(); ++i)
    wrong += narrowed[i] == nearest_by_search(format, values, floats[i]) ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("infinity stays infinity and NaN stays NaN when narrowed", "[core]") {
  const ElementType type = GENERATE(ElementType::float16, ElementType::bfloat16);
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values(9, std::bit_cast<float>(0x7F800001u));  // a payload in the lowest bit
  values[0] = infinity;
  values[1] = -infinity;
  std::vector<uint16_t> narrowed(values.size());
  std::vector<float> wide(values.size());
  narrow(type, values.data(), 9, narrowed.data());
  widen(type, narrowed.data(), 9, wide.data());
  CHECK(wide[0] == infinity);
  CHECK(wide[1] == -infinity);
  for (size_t i = 2; i < wide.size(); ++i) CHECK(std::isnan(wide[i]));
}

TEST_CASE("the first NaN or infinity is found wherever it is", "[core]") {
  const ElementType type = GENERATE(ElementType::float32, ElementType::float16,
                                    ElementType::bfloat16);
  constexpr int64_t kCount = 5000;
  std::vector<float> values(kCount, -3.5f);
  std::vector<std::byte> raw(kCount * element_size(type));
  const auto find = [&] {
    narrow(type, values.data(), kCount, raw.data());
    return first_non_finite(type, raw.data(), kCount);
  };
  CHECK(find() == -1);
  CHECK(first_non_finite(type, raw.data(), 0) == -1);
  for (const int64_t place : {4999, 4096, 1024, 1023, 7, 0}) {
    values[static_cast<size_t>(place)] = place % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                                        : -std::numeric_limits<float>::infinity();
    CHECK(find() == place);
  }
}

TEST_CASE("a big tensor takes the memory of one of its size that is gone", "[core]") {
  const auto filled = [](int64_t megabytes) {
    Tensor tensor(ElementType::float32, {megabytes, 512, 512});
    std::fill_n(tensor.data(), tensor.bytes(), std::byte{7});
    return tensor;
  };
  auto gone = std::make_unique<Tensor>(filled(5));
  const Tensor shared = *gone;
  gone.reset();
  CHECK(filled(5).data() != shared.data());  // somebody still reads the first
  const std::byte* const place = filled(9).data();
  CHECK(filled(9).data() == place);
}

TEST_CASE("tensors are aligned and read any block of rows", "[core]") {
  Tensor small(ElementType::float16, {2, 5, 3});
  CHECK(reinterpret_cast<uintptr_t>(small.data()) % 64 == 0);
  std::vector<float> values(30);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  narrow(ElementType::float16, values.data(), 30, small.data());
  std::vector<float> rows(6);
  small.read(1, 2, 4, rows.data());
  CHECK(rows == std::vector<float>{21, 22, 23, 24, 25, 26});
  const Tensor large(ElementType::float32, {1, 1024, 1024});
  CHECK(reinterpret_cast<uintptr_t>(large.data()) % (2u << 20) == 0);
  CHECK(Tensor().empty());
  CHECK(Tensor(ElementType::float32, {0, 4, 4}).empty());
}
