#include <bit>
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

/// 0 of the same sign where x is too small to be normal.
float flushed(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
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
    for (const int64_t least : {5, 37, 300}) {
      CAPTURE(isa, least);
      const ForcedIsa forced(isa);
      const Kernels& kernels = choose_kernels();
      CHECK(kernels.has_pairs() == (isa == "v4-bf16" || kernels.has_tiles()));
      CHECK(kernels.has_tiles() == isa.starts_with("amx"));
      if (!kernels.has_pairs()) continue;
      const int64_t depth = padded(least, kernels.pair_step);
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

TEST_CASE("matrix tiles add in the order and with the rounding that Intel states",
          "[backend][kernels]") {
  // Numbers of every size, subnormal ones among them: sums round, cancel, and become too small.
  constexpr int64_t kDepth = 48, kSize = 16, kStep = 16;
  const auto number = [](uint64_t stream, int64_t k, int64_t i) {
    const auto at = static_cast<uint64_t>(k * kSize + i);
    const int exponent = static_cast<int>(12 * normal(5, stream, at));
    // Rows of one size each: of about 1, and where sums and products are no longer normal.
    const int of_row = i % 3 == 0 ? 0 : i % 3 == 1 ? -62 : -120;
    return static_cast<float>(std::ldexp(normal(6, stream, at), exponent / 4 + of_row));
  };
  const auto a = pairs_of(kDepth, kSize, [&](int64_t k, int64_t i) { return number(1, k, i); });
  const auto b = pairs_of(kDepth, kSize, [&](int64_t k, int64_t i) { return number(2, k, i); });
  const auto at = [](const std::vector<uint16_t>& from, int64_t k, int64_t i) {
    float x;
    widen(ElementType::bfloat16, &from[static_cast<size_t>((k / 2 * kSize + i) * 2 + k % 2)], 1,
          &x);
    return flushed(x);
  };
  for (const std::string& isa : instruction_sets()) {
    const ForcedIsa forced(isa);
    const Kernels& kernels = choose_kernels();
    if (!kernels.has_tiles()) continue;
    CAPTURE(isa);
    std::vector<float> got(kSize * kSize);
    kernels.multiply_pairs(as_pairs(a), kSize, kSize, as_pairs(b), kSize, kDepth, kSize, got.data(),
                           kSize);
    int64_t zeros = 0, wrong = 0;
    for (int64_t r = 0; r < kSize; ++r)
      for (int64_t c = 0; c < kSize; ++c) {
        float sum = 0;
        for (int64_t step = 0; step < kDepth; step += kStep) {
          float even = 0, odd = 0;
          for (int64_t k = 2 * step; k < 2 * (step + kStep); k += 2) {
            even = flushed(std::fma(at(a, k, r), at(b, k, c), even));
            odd = flushed(std::fma(at(a, k + 1, r), at(b, k + 1, c), odd));
          }
          sum = flushed(sum + flushed(even + odd));
        }
        const float x = got[static_cast<size_t>(r * kSize + c)];
        wrong += std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(sum);
        zeros += x == 0;
      }
    CHECK(wrong == 0);
    CHECK(zeros > 10);
    CHECK(zeros < kSize * kSize / 2);
  }
}

TEST_CASE("products with values in 16 bits agree with float64", "[backend][kernels]") {
  struct Case {
    int64_t keys, count, rows, columns;
    int terms;
    bool paired = false;
  };
  for (const std::string& isa : instruction_sets())
    for (const Case& c : std::vector<Case>{{1, 1, 1, 16, 1},
                                           {40, 40, 7, 48, 1},
                                           {300, 300, 96, 128, 2},
                                           {300, 131, 50, 144, 1},
                                           {131, 131, 50, 144, 1, true},
                                           {200, 200, 97, 272, 2, true},
                                           {700, 257, 33, 80, 2}})
      for (const bool fresh : {true, false}) {
        const ForcedIsa forced(isa);
        const Kernels& kernels = choose_kernels();
        if (!kernels.has_tiles()) continue;
        CAPTURE(isa, c.keys, c.count, c.rows, c.columns, c.terms, c.paired, fresh);
        const int64_t lde = padded(c.rows, kPad) + kPad;
        std::vector<float> e = numbers(c.keys * lde + kPad, 1),
                           acc = numbers(c.rows * c.columns, 2);
        for (float& x : e) x = std::fabs(x);
        const std::vector<float> v = numbers(c.keys * c.terms * c.columns, 3);
        std::vector<uint16_t> parts(v.size());
        narrow(ElementType::bfloat16, v.data(), std::ssize(v), parts.data());
        std::vector<uint16_t> index;
        for (int64_t i = 0; i < c.count && c.count < c.keys; ++i)
          index.push_back(static_cast<uint16_t>(2 * i));
        const std::vector<float> before = acc;
        std::vector<double> mass(static_cast<size_t>(lde), 0.0);
        SumTask sums{};
        sums.index = index.empty() ? nullptr : index.data();
        sums.count = c.count;
        sums.e = e.data();
        sums.ld = lde;
        sums.end = c.rows;
        sums.mass = mass.data();
        ProductTask task{};
        task.index = sums.index;
        task.count = c.count;
        task.fresh = fresh;
        task.sums = &sums;
        task.e = e.data();
        task.lde = lde;
        task.rows = c.rows;
        task.parts = parts.data();
        task.terms = c.terms;
        task.ldv = task.lda = task.columns = c.columns;
        task.acc = acc.data();
        // The same words, those of two keys beside each other.
        std::vector<uint32_t> words(
            static_cast<size_t>(padded(c.keys, 32) / 2 * c.terms * c.columns));
        for (size_t i = 0; i < parts.size(); ++i) {
          const size_t row = static_cast<size_t>(c.terms * c.columns), key = i / row;
          words[key / 2 * row + i % row] |= uint32_t{parts[i]} << key % 2 * 16;
        }
        if (c.paired) task.parts = reinterpret_cast<const uint16_t*>(words.data());
        task.paired = c.paired;
        kernels.product(task);
        double worst = 0, worst_mass = 0;
        for (int64_t r = 0; r < c.rows; ++r) {
          std::vector<double> want(static_cast<size_t>(c.columns), 0.0), size = want;
          double all = 0;
          for (int64_t i = 0; i < c.count; ++i) {
            const int64_t key = index.empty() ? i : index[static_cast<size_t>(i)];
            const auto weight = static_cast<double>(e[static_cast<size_t>(key * lde + r)]);
            all += weight;
            for (int64_t j = 0; j < c.terms * c.columns; ++j) {
              float x;
              widen(ElementType::bfloat16,
                    &parts[static_cast<size_t>(key * c.terms * c.columns + j)], 1, &x);
              const auto column = static_cast<size_t>(j % c.columns);
              want[column] += weight * static_cast<double>(x);
              size[column] += weight * std::fabs(static_cast<double>(x));
            }
          }
          for (size_t j = 0; j < want.size(); ++j) {
            const size_t place = static_cast<size_t>(r * c.columns) + j;
            if (!fresh) want[j] += static_cast<double>(before[place]);
            worst = std::max(
                worst, std::fabs(static_cast<double>(acc[place]) - want[j]) / (size[j] + 1e-3));
          }
          worst_mass = std::max(worst_mass, std::fabs(mass[static_cast<size_t>(r)] / all - 1));
        }
        CHECK(worst < 4.2e-6);  // 2^-18, and a little of float32
        CHECK(worst_mass < 1e-6);
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
