// quantize=kvquant (policies.md 11): by hand, and against plain loops over every level.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "sim/core/numbers.hpp"
#include "sim/stages/stages.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;

namespace {

Settings settings(const char* bits, const char* residual, const char* outliers) {
  Settings values;
  values.set("quantize", "kvquant");
  values.set("quant_bits", bits);
  values.set("quant_rope", "after");
  values.set("quant_residual", residual);
  values.set("quant_outliers", outliers);
  return values;
}

Table<float> skewed(int64_t rows, int64_t columns, uint64_t seed) {
  Table<float> table(rows, columns);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const double u = uniform(seed, 0, static_cast<uint64_t>(r), static_cast<uint64_t>(c));
      table(r, c) = static_cast<float>((c + 1) * std::pow(u, 4) - 0.5);
    }
  return table;
}

/// The definition, number by number: outliers aside, lines brought to [-1, 1], and levels moved to
/// the means of the numbers nearest to them until nothing moves.
Table<float> by_the_book(const Table<float>& x, bool along_columns, size_t count, double share) {
  Table<float> out = x;
  const int64_t lines = along_columns ? x.columns() : x.rows();
  const int64_t length = along_columns ? x.rows() : x.columns();
  const auto at = [&](int64_t line, int64_t i) -> float& {
    return along_columns ? out(i, line) : out(line, i);
  };
  std::vector<std::vector<int64_t>> inner(static_cast<size_t>(lines));
  std::vector<float> middle, half;
  std::vector<double> all;
  for (int64_t line = 0; line < lines; ++line) {
    double mean = 0;
    for (int64_t i = 0; i < length; ++i) mean += static_cast<double>(at(line, i)) / length;
    std::vector<std::pair<double, int64_t>> far;
    for (int64_t i = 0; i < length; ++i)
      far.emplace_back(-std::fabs(static_cast<double>(at(line, i)) - mean), i);
    std::sort(far.begin(), far.end());
    const auto aside = static_cast<size_t>(std::nearbyint(share * static_cast<double>(length)));
    float lo = INFINITY, hi = -INFINITY;
    for (size_t r = aside; r < far.size(); ++r) {
      inner[static_cast<size_t>(line)].push_back(far[r].second);
      lo = std::min(lo, at(line, far[r].second));
      hi = std::max(hi, at(line, far[r].second));
    }
    half.push_back((hi - lo) / 2);
    middle.push_back(lo + half.back());
    for (const int64_t i : inner[static_cast<size_t>(line)])
      all.push_back(static_cast<double>((at(line, i) - middle.back()) / half.back()));
  }
  std::sort(all.begin(), all.end());
  std::vector<double> levels;
  for (size_t k = 0; k < count; ++k)
    levels.push_back(all[(2 * k + 1) * (all.size() - 1) / (2 * count)]);
  const auto nearest = [&](double number) {
    size_t best = 0;
    for (size_t k = 1; k < count; ++k)
      if (std::fabs(number - levels[k]) < std::fabs(number - levels[best])) best = k;
    return best;
  };
  for (int step = 0; step < 50; ++step) {
    std::vector<double> sum(count, 0.0), members(count, 0.0);
    for (const double number : all) {
      sum[nearest(number)] += number;
      members[nearest(number)] += 1;
    }
    const std::vector<double> before = levels;
    for (size_t k = 0; k < count; ++k)
      if (members[k] > 0) levels[k] = sum[k] / members[k];
    if (levels == before) break;
  }
  for (int64_t line = 0; line < lines; ++line)
    for (const int64_t i : inner[static_cast<size_t>(line)]) {
      const auto l = static_cast<size_t>(line);
      const auto number = static_cast<double>((at(line, i) - middle[l]) / half[l]);
      at(line, i) = middle[l] + half[l] * static_cast<float>(levels[nearest(number)]);
    }
  return out;
}

}  // namespace

TEST_CASE("kvquant: one bit puts two levels at the means of two clusters", "[quantize][stages]") {
  // Values 0, 1, 9, 10 of one entry: range 10, numbers -1, -0.8, 0.8, 1, levels -0.9 and 0.9.
  const Settings values = settings("1", "0", "0");
  Table<float> k(1, 1, 3.0f), v(1, 4);
  v.values() = {0, 1, 9, 10};
  quantizer(values).apply(values, {.k = k, .v = v, .positions = {}});
  CHECK(k(0, 0) == 3.0f);  // a constant stays
  for (int64_t c = 0; c < 4; ++c) CHECK(v(0, c) == Approx(c < 2 ? 0.5 : 9.5));
}

TEST_CASE("kvquant: what is furthest from the mean stays as it is, the newest entries, too",
          "[quantize][stages]") {
  const Settings values = settings("1", "1", "0.25");
  Table<float> k(5, 1), v(5, 4);
  k.values() = {0, 1, 1000, 2, 7};  // three quarters of four are rounded; the fifth is the newest
  for (int64_t r = 0; r < 5; ++r)
    for (int64_t c = 0; c < 4; ++c) v(r, c) = static_cast<float>(c == 1 ? -50 : r + c);
  const Table<float> before = v;
  quantizer(values).apply(values, {.k = k, .v = v, .positions = {}});
  CHECK(k(2, 0) == 1000);
  CHECK(k(4, 0) == 7);
  const std::set<float> rounded = {k(0, 0), k(1, 0), k(3, 0)};
  CHECK(rounded.size() == 2);
  for (int64_t r = 0; r < 5; ++r) CHECK(v(r, 1) == -50);
  for (int64_t c = 0; c < 4; ++c) CHECK(v(4, c) == before(4, c));
  const QuantizedCount count = quantizer(values).count(values, 5, 1, 4);
  CHECK(count.numbers == 4 * (1 + 4));
  CHECK(count.bits == (20 - 5) * 1 + 32 * 5 + 32 * (1 + 4) + 16 * 4);
}

TEST_CASE("kvquant rounds as plain loops do, and closer than even steps", "[quantize][stages]") {
  for (const char* bits : {"2", "3"})
    for (const char* share : {"0", "0.1"}) {
      CAPTURE(bits, share);
      const Settings values = settings(bits, "0", share);
      const size_t count = size_t{1} << values.count("quant_bits");
      const Table<float> k = skewed(40, 6, 1), v = skewed(40, 20, 2);
      Table<float> k_new = k, v_new = v;
      quantizer(values).apply(values, {.k = k_new, .v = v_new, .positions = {}});
      const Table<float> k_book = by_the_book(k, true, count, values.real("quant_outliers"));
      const Table<float> v_book = by_the_book(v, false, count, values.real("quant_outliers"));
      for (size_t i = 0; i < k.values().size(); ++i)
        CHECK(k_new.values()[i] == Approx(k_book.values()[i]).margin(1e-5));
      for (size_t i = 0; i < v.values().size(); ++i)
        CHECK(v_new.values()[i] == Approx(v_book.values()[i]).margin(1e-5));
      Settings even = values;
      even.set("quantize", "per-channel");
      even.set("quant_group", "40");
      Table<float> k_even = k, unused = v;
      quantizer(even).apply(even, {.k = k_even, .v = unused, .positions = {}});
      double fitted = 0, stepped = 0;
      for (size_t i = 0; i < k.values().size(); ++i) {
        fitted += std::pow(static_cast<double>(k_new.values()[i] - k.values()[i]), 2);
        stepped += std::pow(static_cast<double>(k_even.values()[i] - k.values()[i]), 2);
      }
      CHECK(fitted < stepped);
    }
}

TEST_CASE("records that differ in a key of their rounding alone are replayed apart",
          "[quantize][stages]") {
  const std::string record = "full,quantize=kvquant,quant_bits=1,quant_residual=0,quant_outliers=";
  const test::StudyCase study({}, {}, {record + "0", record + "0.3", record + "0"});
  const auto error = [&](int64_t policy) {
    return study.value("output_error_mean", {policy, 0, 0});
  };
  CHECK(error(0) > 0);
  CHECK(error(1) < error(0));
}
