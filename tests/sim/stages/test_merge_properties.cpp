// The exact statements about merging (policies.md 11, metrics.md 3), on random pairs.
#include <catch2/catch.hpp>

#include "sim/core/numbers.hpp"
#include "tests/sim/stages/merge_fixture.hpp"
#include "tests/support/random_trace.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr int kTrials = 200;
constexpr size_t kDim = 6;

Row random_row(uint64_t trial, uint64_t stream, double scale = 1) {
  Row row(kDim);
  for (size_t c = 0; c < kDim; ++c) row[c] = static_cast<float>(scale * normal(trial, stream, c));
  return row;
}

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c)
    sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return sum;
}

/// A pair with similar keys, and the query at which it is merged.
struct Pair {
  explicit Pair(uint64_t trial)
      : key_c(random_row(trial, 1)), key_e(key_c), query(random_row(trial, 3)) {
    const Row other = random_row(trial, 2, 0.3);
    for (size_t c = 0; c < kDim; ++c) key_e[c] += other[c];
  }
  SlotCache cache() const { return slots({key_c, key_e}, {random_row(1, 4), random_row(1, 5)}); }
  void estimate(SlotCache& slots_of_pair, const Row& at) const {
    slots_of_pair.estimate_with(std::make_unique<StatedEstimates>(
        std::vector<std::vector<double>>{{dot(at, key_c), dot(at, key_e)}}));
  }
  /// ln of what both weigh at a query.
  double mass(const Row& at) const { return log_add(dot(at, key_c), dot(at, key_e)); }

  Row key_c, key_e, query;
};

void merge_pair(const char* name, SlotCache& cache) {
  Compression compression(name);
  compression.settings.set("merge_threshold", "-1");
  compression.add(cache, {1});
  compression.run();
  REQUIRE(cache.members(0).size() == 2);
}

}  // namespace

TEST_CASE("A convex merge without votes has less mass than its members at every query",
          "[merge][stages]") {
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const Pair pair(trial);
    SlotCache cache = pair.cache();
    merge_pair("convex", cache);
    const Row query = random_row(trial, 9, 3);
    CHECK(dot(query, cache.key(0)) < pair.mass(query));
  }
}

TEST_CASE("A score-weighted key with votes has at least its members' mass at the merge query",
          "[merge][stages]") {
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const Pair pair(trial);
    SlotCache cache = pair.cache();
    pair.estimate(cache, pair.query);
    merge_pair("keepkv-code", cache);
    const double logit = dot(pair.query, cache.key(0)) + std::log(2.0);
    CHECK(logit >= pair.mass(pair.query) - 1e-3);  // but for the code's 2^-14
  }
}

TEST_CASE("keepkv keeps the mass at the merge query, whatever the scale", "[merge][stages]") {
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const Pair pair(trial);
    SlotCache cache = pair.cache();
    pair.estimate(cache, pair.query);
    merge_pair("keepkv", cache);
    const double logit = dot(pair.query, cache.key(0)) + std::log(2.0);
    CHECK(logit == Approx(pair.mass(pair.query)).margin(1e-4));
  }
}

TEST_CASE("The level that Eq. 7 asks for is never above the mean level", "[merge][stages]") {
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const double e = 3 * normal(trial, 1, 0);
    const double c = 3 * normal(trial, 1, 1);
    const double share = 1 / (1 + std::exp(c - e));
    const double wanted = log_add(e, c) - std::log(2.0);
    CHECK(wanted <= share * e + (1 - share) * c + 1e-12);
  }
}

TEST_CASE("keepkv depends on a constant added to all logits, keepkv-bias does not",
          "[merge][stages]") {
  const Pair pair(1);
  const auto merged_key = [&](const char* name, double constant) {
    SlotCache cache = pair.cache();
    cache.estimate_with(std::make_unique<StatedEstimates>(std::vector<std::vector<double>>{
        {dot(pair.query, pair.key_c) + constant, dot(pair.query, pair.key_e) + constant}}));
    merge_pair(name, cache);
    return Row(cache.key(0).begin(), cache.key(0).end());
  };
  CHECK(merged_key("keepkv-bias", 0)[0] == Approx(merged_key("keepkv-bias", 5)[0]));
  CHECK(std::fabs(merged_key("keepkv", 0)[0] - merged_key("keepkv", 5)[0]) > 1e-3f);
}

TEST_CASE("keepkv-bias is exact at the merge query and loses KL elsewhere", "[merge][stages]") {
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const Pair pair(trial);
    SlotCache cache = pair.cache();
    pair.estimate(cache, pair.query);
    merge_pair("keepkv-bias", cache);
    const auto log_mass = [&](const Row& at) { return cache.bias(0, 0) + dot(at, cache.key(0)); };
    CHECK(log_mass(pair.query) == Approx(pair.mass(pair.query)).margin(1e-5));

    const auto share = [&](const Row& at) {
      return 1 / (1 + std::exp(dot(at, pair.key_c) - dot(at, pair.key_e)));
    };
    const Row other = random_row(trial, 9, 2);
    const double s = share(pair.query);
    const double q = share(other);
    const double kl = s * std::log(s / q) + (1 - s) * std::log((1 - s) / (1 - q));
    CHECK(log_mass(other) - pair.mass(other) == Approx(-kl).margin(1e-4));
  }
}

TEST_CASE("Equal pairs with equal estimates change nothing; unequal estimates do",
          "[merge][stages]") {
  for (const char* name : {"keepkv", "keepkv-bias", "keepkv-code"}) {
    const Row key = random_row(3, 1);
    const Row value = random_row(3, 2);
    const auto merged_logit = [&](double level_e) {
      SlotCache cache = slots({key, key}, {value, value});
      const double level = dot(random_row(3, 3), key);
      cache.estimate_with(std::make_unique<StatedEstimates>(
          std::vector<std::vector<double>>{{level, level + level_e}}));
      merge_pair(name, cache);
      const double weight = cache.bias(0, 0) != 0 ? cache.bias(0, 0) : std::log(2.0);
      return weight + dot(random_row(3, 8), cache.key(0));
    };
    const double both = std::log(2.0) + dot(random_row(3, 8), key);
    CHECK(merged_logit(0) == Approx(both).margin(1e-5));
    if (std::string(name) == "keepkv") CHECK(std::fabs(merged_logit(2) - both) > 1e-3);
  }
}

TEST_CASE("KeepKV's printed bound (Theorem 5) fails where the scale multiplies the error",
          "[merge][stages]") {
  // At the merge query (1, 0) the logits are 0.2 and -0.347: their mean level is about -0.0005, so
  // that the scale is about 68. The second coordinate adds delta to both logits at the later query
  // (1, delta), and 68 delta to the merged slot's.
  const double delta = 0.02;
  SlotCache cache = slots({{-0.347f, 1}, {0.2f, 1}}, {{0}, {0}});
  cache.estimate_with(std::make_unique<StatedEstimates>(
      std::vector<std::vector<double>>{{static_cast<double>(-0.347f), static_cast<double>(0.2f)}}));
  merge_pair("keepkv", cache);
  const Row later = {1, static_cast<float>(delta)};
  const double merged = 2 * std::exp(dot(later, cache.key(0)));
  const double exact = std::exp(0.2 + delta) + std::exp(-0.347 + delta);
  // Beside the pair (value 0) stands one entry of weight 1 and value 1: gamma = 1.
  const double change = std::fabs(1 / (1 + merged) - 1 / (1 + exact));
  const double eps = 1 - std::exp(-delta);
  const double printed = 2 * eps * (1 + eps) / ((1 - eps) * (1 - eps));
  CHECK(change > printed);
  // The bound with the scale in it holds.
  const double level = std::log((std::exp(0.2) + std::exp(-0.347)) / 2);
  const double share = 1 / (1 + std::exp(-0.347 - 0.2));
  const double f = level / (share * 0.2 + (1 - share) * -0.347);
  const double root = std::sqrt(std::pow(1 - eps, -(1 + std::fabs(f))));
  const double with_scale = (1 - std::sqrt(1 - eps * eps)) / eps + (root - 1) / (root + 1);
  CHECK(change <= with_scale);
}
