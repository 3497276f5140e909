#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "sim/backend/cpu/kernels.hpp"
#include "sim/core/error.hpp"
#include "sim/core/tensor.hpp"
#include "tests/sim/backend/backends.hpp"

namespace kvsim::test {

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

TEST_CASE("products of pairs of bfloat16 take both members once", "[backend][kernels]") {
  // Small integers: every product and sum is exact.
  constexpr int64_t kDepth = 5, kRows = 9, kLda = 12, kColumns = 48;
  for (const std::string& isa : instruction_sets()) {
    CAPTURE(isa);
    const ForcedIsa forced(isa);
    const Kernels& kernels = choose_kernels();
    CHECK(kernels.has_pairs() == (isa == "v4-bf16"));
    if (!kernels.has_pairs()) continue;
    const auto a_at = [](int64_t k, int64_t r) { return static_cast<float>(k * 7 % 5 - r % 4); };
    const auto b_at = [](int64_t k, int64_t c) { return static_cast<float>(c % 9 - k % 3); };
    std::vector<uint16_t> a(2 * kDepth * kLda), b(2 * kDepth * kColumns);
    const auto place = [](std::vector<uint16_t>& to, int64_t k, int64_t at, int64_t ld, float x) {
      narrow(ElementType::bfloat16, &x, 1, &to[static_cast<size_t>((k / 2 * ld + at) * 2 + k % 2)]);
    };
    for (int64_t k = 0; k < 2 * kDepth; ++k) {
      for (int64_t r = 0; r < kRows; ++r) place(a, k, r, kLda, a_at(k, r));
      for (int64_t c = 0; c < kColumns; ++c) place(b, k, c, kColumns, b_at(k, c));
    }
    std::vector<float> got(kLda * kColumns);
    kernels.multiply_pairs(reinterpret_cast<const float*>(a.data()), kLda, kRows,
                           reinterpret_cast<const float*>(b.data()), kColumns, kDepth, kColumns,
                           got.data(), kColumns);
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kColumns; ++c) {
        float want = 0;
        for (int64_t k = 0; k < 2 * kDepth; ++k) want += a_at(k, r) * b_at(k, c);
        CHECK(got[static_cast<size_t>(r * kColumns + c)] == want);
      }
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
