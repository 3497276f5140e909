// merge=attention-fit (policies.md 9): by hand, against plain elimination in float64, and what a
// fit is good for.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/sim/stages/merge_fixture.hpp"
#include "tests/support/random_trace.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

using Rows = std::vector<std::vector<double>>;

/// x of (a' a + ridge mean(diag) I) x = a' y, by elimination.
Rows solve(const Rows& a, const Rows& y, double ridge) {
  const size_t n = a[0].size(), m = y[0].size();
  Rows normal(n, std::vector<double>(n + m, 0.0));
  double diagonal = 0;
  for (size_t i = 0; i < n; ++i) {
    for (size_t r = 0; r < a.size(); ++r) {
      for (size_t j = 0; j < n; ++j) normal[i][j] += a[r][i] * a[r][j];
      for (size_t j = 0; j < m; ++j) normal[i][n + j] += a[r][i] * y[r][j];
    }
    diagonal += normal[i][i] / static_cast<double>(n);
  }
  for (size_t i = 0; i < n; ++i) normal[i][i] += ridge * diagonal;
  for (size_t i = 0; i < n; ++i)
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = normal[r][i] / normal[i][i];
      for (size_t j = 0; j < n + m; ++j) normal[r][j] -= factor * normal[i][j];
    }
  Rows x(n, std::vector<double>(m));
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < m; ++j) x[i][j] = normal[i][n + j] / normal[i][i];
  return x;
}

struct Case {
  std::vector<Row> keys, values, queries;
  std::vector<float> sinks;

  static Case random(uint64_t seed, size_t entries, size_t queries) {
    Case c;
    const auto rows = [&](uint64_t stream, size_t count) {
      std::vector<Row> made(count, Row(2));
      for (size_t i = 0; i < count; ++i)
        for (size_t d = 0; d < 2; ++d)
          made[i][d] = static_cast<float>(normal(seed, stream, 2 * i + d));
      return made;
    };
    c.keys = rows(1, entries);
    c.values = rows(2, entries);
    c.queries = rows(3, queries);
    return c;
  }
  ReferenceQueries reference(int heads) const {
    ReferenceQueries made;
    made.queries = Table<float>(std::ssize(queries), 2);
    made.scale = 0.5;
    made.sinks = sinks;
    for (size_t r = 0; r < queries.size(); ++r) {
      std::ranges::copy(queries[r], made.queries.row(static_cast<int64_t>(r)).begin());
      made.head.push_back(static_cast<int>(r) % heads);
    }
    return made;
  }
  double exponent(size_t query, size_t entry) const {
    double dot = 0;
    for (size_t d = 0; d < 2; ++d)
      dot += static_cast<double>(queries[query][d]) * static_cast<double>(keys[entry][d]);
    return std::exp(0.5 * dot);
  }
  double sink(size_t query, size_t heads) const {
    return sinks.empty() ? 0 : std::exp(static_cast<double>(sinks[query % heads]));
  }
  double largest(size_t query, size_t heads) const {
    double most = sink(query, heads);
    for (size_t i = 0; i < keys.size(); ++i) most = std::max(most, exponent(query, i));
    return most;
  }
};

SlotCache fitted(const Case& c, const std::vector<int64_t>& evicted, int heads, const char* ridge) {
  SlotCache cache = slots(c.keys, c.values, heads);
  Compression compression("attention-fit");
  compression.settings.set("fit_ridge", ridge);
  compression.add(cache, evicted).reference = std::make_unique<ReferenceQueries>(
      c.reference(heads));
  compression.run();
  return cache;
}

}  // namespace

TEST_CASE("of two equal keys one stays, with the mass of both and the mean of their values",
          "[stages]") {
  const Case c{
      {{1, 0}, {1, 0}, {0, 1}}, {{1, 0}, {0, 1}, {5, 5}}, {{1, 1}, {2, 0}, {0, 3}, {1, 2}}, {}};
  const SlotCache cache = fitted(c, {1}, 1, "0.000000000001");
  CHECK(cache.bias(0, 0) == Approx(std::log(2.0)).epsilon(1e-6));
  CHECK(cache.bias(2, 0) == Approx(0).margin(1e-6));
  CHECK(static_cast<double>(cache.value(0)[0]) == Approx(0.5).epsilon(1e-5));
  CHECK(static_cast<double>(cache.value(0)[1]) == Approx(0.5).epsilon(1e-5));
  CHECK(static_cast<double>(cache.value(2)[0]) == Approx(5).epsilon(1e-5));
  CHECK(cache.key(0)[0] == 1);
}

TEST_CASE("biases and values are those of two least squares, sinks and clamp included",
          "[stages]") {
  const double ridge = 0.001;
  for (const uint64_t seed : {1, 2, 3}) {
    for (const bool with_sink : {false, true}) {
      CAPTURE(seed, with_sink);
      Case c = Case::random(seed, 7, 24);
      if (with_sink) c.sinks = {0.5F, -1.0F};
      const std::vector<size_t> kept = {0, 2, 5, 6};
      const SlotCache cache = fitted(c, {1, 3, 4}, 2, "0.001");
      Rows some, mass, attention, output;
      for (size_t r = 0; r < c.queries.size(); ++r) {
        const double over = c.largest(r, 2);
        std::vector<double>& row = some.emplace_back();
        for (const size_t i : kept) row.push_back(c.exponent(r, i) / over);
        double sum = 0;
        std::vector<double> z(2, 0.0);
        for (size_t i = 0; i < c.keys.size(); ++i) {
          sum += c.exponent(r, i) / over;
          for (size_t d = 0; d < 2; ++d)
            z[d] += c.exponent(r, i) / over * static_cast<double>(c.values[i][d]);
        }
        mass.push_back({sum});
        for (double& one : z) one /= sum + c.sink(r, 2) / over;
        output.push_back(z);
      }
      Rows weight = solve(some, mass, ridge);
      for (auto& one : weight) one[0] = std::max(one[0], 1e-12);
      for (size_t r = 0; r < c.queries.size(); ++r) {
        double sum = c.sink(r, 2) / c.largest(r, 2);
        std::vector<double> row;
        for (size_t k = 0; k < kept.size(); ++k) {
          row.push_back(some[r][k] * weight[k][0]);
          sum += row.back();
        }
        for (double& one : row) one /= sum;
        attention.push_back(row);
      }
      const Rows values = solve(attention, output, ridge);
      for (size_t k = 0; k < kept.size(); ++k) {
        const auto slot = static_cast<int64_t>(kept[k]);
        for (int x = 0; x < 2; ++x)
          CHECK(cache.bias(slot, x) == Approx(std::log(weight[k][0])).epsilon(1e-5));
        for (size_t d = 0; d < 2; ++d)
          CHECK(static_cast<double>(cache.value(slot)[d]) == Approx(values[k][d]).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("nothing is fitted where nothing leaves or nothing stays", "[stages]") {
  const Case c = Case::random(4, 3, 8);
  CHECK(fitted(c, {}, 1, "0.001").value(0)[0] == c.values[0][0]);
  CHECK(fitted(c, {0, 1, 2}, 1, "0.001").bias(0, 0) == 0);
}
