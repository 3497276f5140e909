#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "sim/backend/cpu/kernels.hpp"
#include "sim/core/error.hpp"
#include "sim/core/tensor.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {
namespace {

/// [depth][ld] pairs of x(k, i) for k < 2 * depth and i < ld, rounded to bfloat16.
template <class Number>
std::vector<uint16_t> pairs_of(int64_t depth, int64_t ld, const Number& x) {
  std::vector<uint16_t> pairs(static_cast<size_t>(2 * depth * ld));
  for (int64_t k = 0; k < 2 * depth; ++k)
    for (int64_t i = 0; i < ld; ++i) {
      const float value = x(k, i);
      narrow(ElementType::bfloat16, &value, 1,
             &pairs[static_cast<size_t>((k / 2 * ld + i) * 2 + k % 2)]);
    }
  return pairs;
}

const float* as_pairs(const std::vector<uint16_t>& pairs) {
  return reinterpret_cast<const float*>(pairs.data());
}

std::vector<float> numbers(int64_t count, uint64_t stream) {
  std::vector<float> x;
  for (int64_t i = 0; i < count; ++i)
    x.push_back(static_cast<float>(normal(9, stream, static_cast<uint64_t>(i))));
  return x;
}

}  // namespace

TEST_CASE("the vectorised exponential is right to 1.3e-7", "[backend][kernels]") {
  for (const std::string& isa : instruction_sets()) {
    const ForcedIsa forced(isa);
    const Kernels& kernels = choose_kernels();
    CHECK(isa == kernels.isa);
    std::vector<float> x;
    for (double value = -86.5; value < 25; value += 0.000617)
      x.push_back(static_cast<float>(value));
    x.push_back(0.0f);
    std::vector<float> e(x.size());
    double sum = 0;
    const double got = kernels.exp_row(x.data(), static_cast<int64_t>(x.size()), 0.0f, e.data());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      sum += static_cast<double>(e[i]);
      worst = std::max(
          worst, std::fabs(static_cast<double>(e[i]) / std::exp(static_cast<double>(x[i])) - 1));
    }
    CAPTURE(isa);
    CHECK(worst < 1.3e-7);
    CHECK(e.back() == 1.0f);
    CHECK(got == Approx(sum).epsilon(1e-6));
  }
}

TEST_CASE("the exponential of what is far below is exactly zero", "[backend][kernels]") {
  for (const std::string& isa : instruction_sets()) {
    CAPTURE(isa);
    const ForcedIsa forced(isa);
    const float low[] = {-86.7f, -100.0f, -1e4f, -1e30f, -std::numeric_limits<float>::infinity()};
    float e[5];
    CHECK(choose_kernels().exp_row(low, 5, 0.0f, e) == 0.0);
    for (const float value : e) CHECK(value == 0.0f);
  }
}

TEST_CASE("the softcap is right to 2e-7 of the cap", "[backend][kernels]") {
  for (const std::string& isa : instruction_sets())
    for (const float cap : {1.0f, 30.0f, 50.0f}) {
      CAPTURE(isa, cap);
      const ForcedIsa forced(isa);
      std::vector<float> x;
      for (double value = -500; value < 500; value += 0.0171)
        x.push_back(static_cast<float>(value));
      x.insert(x.end(), {0.0f, 1e-20f, -1e-20f, 1e30f, -1e30f});
      std::vector<float> y = x;
      choose_kernels().softcap(y.data(), static_cast<int64_t>(y.size()), cap);
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double c = static_cast<double>(cap);
        const double want = c * std::tanh(static_cast<double>(x[i]) / c);
        worst = std::max(worst, std::fabs(static_cast<double>(y[i]) - want) / c);
      }
      CHECK(worst < 2e-7);
    }
}

TEST_CASE("transposing writes what it should, and nothing else", "[backend][kernels]") {
  constexpr float kUntouched = -7;
  const std::vector<float> in = numbers(40 * 40, 5);
  for (const std::string& isa : instruction_sets()) {
    const ForcedIsa forced(isa);
    const Kernels& kernels = choose_kernels();
    bool right = true;
    for (int64_t rows = 1; rows <= 37; ++rows)
      for (const int64_t columns : {1, 8, 16, 29, 32, 40})
        for (const int64_t ldout : {rows, rows + 3}) {
          std::vector<float> out(static_cast<size_t>(columns * ldout + 16), kUntouched);
          kernels.transpose(in.data(), rows, columns, 40, out.data(), ldout);
          for (int64_t i = 0; i < std::ssize(out); ++i) {
            const int64_t c = i / ldout, r = i % ldout;
            const float wanted = c < columns && r < rows ? in[static_cast<size_t>(r * 40 + c)]
                                                         : kUntouched;
            right = right && out[static_cast<size_t>(i)] == wanted;
          }
        }
    INFO(isa);
    CHECK(right);
  }
}

TEST_CASE("products of pairs of bfloat16 take both members once", "[backend][kernels]") {
  // Small integers: every product and sum is exact.
  constexpr int64_t kRows = 21, kLd = 32, kColumns = 48;
  for (const std::string& isa : instruction_sets())
    for (const int64_t depth : {5, 37, 300}) {
      CAPTURE(isa, depth);
      const ForcedIsa forced(isa);
      const Kernels& kernels = choose_kernels();
      CHECK(kernels.has_pairs() == (isa == "v4-bf16"));
      if (!kernels.has_pairs()) continue;
      const auto a = pairs_of(
          depth, kLd, [](int64_t k, int64_t r) { return static_cast<float>(k * 7 % 5 - r % 4); });
      const auto b = pairs_of(
          depth, kColumns, [](int64_t k, int64_t c) { return static_cast<float>(c % 9 - k % 3); });
      std::vector<float> got(kLd * kColumns);
      kernels.multiply_pairs(as_pairs(a), kLd, kRows, as_pairs(b), kColumns, depth, kColumns,
                             got.data(), kColumns);
      int64_t wrong = 0;
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t c = 0; c < kColumns; ++c) {
          float want = 0;
          for (int64_t k = 0; k < 2 * depth; ++k)
            want += static_cast<float>((k * 7 % 5 - r % 4) * (c % 9 - k % 3));
          wrong += got[static_cast<size_t>(r * kColumns + c)] != want;
        }
      CHECK(wrong == 0);
    }
}

TEST_CASE("an unknown instruction set is a usage error", "[backend][kernels]") {
  const ForcedIsa forced("v9");
  CHECK_THROWS_AS(make_cpu_backend(), Error);
}

TEST_CASE("the device says the instruction set", "[backend][kernels]") {
  const ForcedIsa forced("portable");
  CHECK(make_cpu_backend()->device().ends_with(", portable"));
  CHECK(make_cpu_backend()->name() == "cpu");
}

}  // namespace kvsim::test
