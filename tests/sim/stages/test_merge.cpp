// Worked examples: every merge of policies.md 9 on a handful of slots, by hand.
#include <catch2/catch.hpp>

#include "tests/sim/stages/merge_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

void check_row(std::span<const float> row, const std::vector<double>& expected) {
  REQUIRE(row.size() == expected.size());
  for (size_t c = 0; c < expected.size(); ++c)
    CHECK(static_cast<double>(row[c]) == Approx(expected[c]).margin(1e-6));
}

void estimate(SlotCache& cache, std::vector<std::vector<double>> values) {
  cache.estimate_with(std::make_unique<StatedEstimates>(std::move(values)));
}

const double kE = std::exp(1.0);

}  // namespace

TEST_CASE("convex: a slot is the plain mean of all its entries, merged one after the other",
          "[merge][stages]") {
  SlotCache cache = slots({{2, 0}, {1, 0}, {0, 1}, {3, 0}}, {{6}, {0}, {1}, {3}});
  merge("convex", cache, {1, 3});   // both point along slot 0
  check_row(cache.key(0), {2, 0});  // (2 + 1 + 3) / 3
  check_row(cache.value(0), {3});   // (6 + 0 + 3) / 3
  CHECK(cache.members(0) == std::vector<uint32_t>{0, 1, 3});
  CHECK(cache.members(2).empty());
}

TEST_CASE("convex: the more recent of equally near slots is the target, a far entry is dropped",
          "[merge][stages]") {
  SlotCache cache = slots({{1, 0}, {1, 0}, {0, 1}, {1, 0}}, {{0}, {2}, {8}, {4}});
  merge("convex", cache, {1, 2});
  check_row(cache.value(3), {3});  // slot 1 joins slot 3, not slot 0
  check_row(cache.value(0), {0});
  CHECK(cache.members(3) == std::vector<uint32_t>{1, 3});  // slot 2 is in nobody's
}

TEST_CASE("keepkv: Eq. 7 with scores 2 and 4, each one vote", "[merge][stages]") {
  SlotCache cache = slots({{2, 0}, {4, 0}}, {{0}, {3}});
  estimate(cache, {{std::log(4.0), std::log(2.0)}});
  Compression compression("keepkv");
  MergeOwner& owner = compression.add(cache, {1});
  compression.run();
  // sigma = 2/6, mean level = (ln 2 + 2 ln 4)/3 = 5/3 ln 2, f = ln(6/2) / that.
  const double f = 3 * std::log(3.0) / (5 * std::log(2.0));
  check_row(cache.key(0), {f * 8 / 3, 0});
  check_row(cache.value(0), {1});
  CHECK(cache.entries(0) == 2);
  CHECK(cache.estimates()->log_score(0, 0) == Approx(std::log(3.0)));
  REQUIRE(owner.scales.size() == 1);
  CHECK(owner.scales[0] == Approx(f));
  CHECK(owner.undefined_scales == 0);
}

TEST_CASE("keepkv: where the mean level is 0 the scale is 1 and counted", "[merge][stages]") {
  SlotCache cache = slots({{2, 0}, {4, 0}}, {{0}, {2}});
  estimate(cache, {{0, 0}});
  Compression compression("keepkv");
  MergeOwner& owner = compression.add(cache, {1});
  compression.run();
  check_row(cache.key(0), {3, 0});
  CHECK(owner.undefined_scales == 1);
}

TEST_CASE("keepkv: votes of earlier merges weigh in the next one", "[merge][stages]") {
  SlotCache cache = slots({{1, 0}, {1, 0}, {1, 0}}, {{0}, {3}, {6}});
  estimate(cache, {{1, 1, 1}});
  merge("keepkv", cache, {0, 1});
  check_row(cache.key(2), {1, 0});  // equal entries with equal estimates change nothing
  check_row(cache.value(2), {3});
  CHECK(cache.entries(2) == 3);
}

TEST_CASE("keepkv-code: weights are votes times (score + 2^-14), the key is not scaled",
          "[merge][stages]") {
  SlotCache cache = slots({{2, 0}, {4, 0}}, {{0}, {3}});
  estimate(cache, {{std::log(4.0), std::log(2.0)}});
  merge("keepkv-code", cache, {1});
  const double share = (2 + std::pow(2.0, -14)) / (6 + std::pow(2.0, -13));
  check_row(cache.key(0), {2 * (1 - share) + 4 * share, 0});
  check_row(cache.value(0), {3 * share});
  CHECK(cache.estimates()->log_score(0, 0) == Approx(std::log(3.0)));
}

TEST_CASE("keepkv-bias: one head's bias makes up for the convex key", "[merge][stages]") {
  SlotCache cache = slots({{2, 0}, {4, 0}}, {{0}, {3}});
  estimate(cache, {{std::log(4.0), std::log(2.0)}});
  merge("keepkv-bias", cache, {1});
  check_row(cache.key(0), {8.0 / 3, 0});
  check_row(cache.value(0), {1});
  CHECK(cache.bias(0, 0) == Approx(std::log(6.0) - 5.0 / 3 * std::log(2.0)));
  CHECK(cache.estimates()->log_score(0, 0) == Approx(5.0 / 3 * std::log(2.0)));
}

TEST_CASE("keepkv-bias: two heads share a key by how much they attend to the pair",
          "[merge][stages]") {
  SlotCache cache = slots({{1, 0}, {1, 0.1f}, {0, 1}}, {{0}, {1}, {5}}, 2);
  // Scores of head 0: 1, 1, 2 of 4; of head 1: 3, 1, 4 of 8.
  estimate(cache, {{0, 0, std::log(2.0)}, {std::log(3.0), 0, std::log(4.0)}});
  merge("keepkv-bias", cache, {1});
  // sigma = (1/2 * 1/4 + 1/2 * 1/8) / (1/4 + 1/4) = 3/8.
  check_row(cache.value(0), {0.375});
  check_row(cache.key(0), {1, 0.0375});
  CHECK(cache.bias(0, 0) == Approx(std::log(2.0)));  // levels 0 and 0
  CHECK(cache.bias(0, 1) == Approx(std::log(4.0) - 0.625 * std::log(3.0)));
}

TEST_CASE("d2o: the threshold is the mean best cosine, weights are exp(cosine) and e",
          "[merge][stages]") {
  SlotCache cache = slots({{1, 0}, {3, 0}, {0, 2}, {0, -1}}, {{2}, {4}, {1}, {9}});
  Compression compression("d2o");
  compression.add(cache, {1, 3});  // cosines 1 with slot 0, 0 with slot 0: threshold 1/2
  compression.run();
  check_row(cache.key(0), {2, 0});
  check_row(cache.value(0), {3});
  CHECK(cache.members(0) == std::vector<uint32_t>{0, 1});
  CHECK(compression.memory.threshold == Approx(0.5));

  SlotCache later = slots({{1, 0}, {0.6f, 0.8f}}, {{0}, {1}});
  compression.request.owners.clear();
  compression.add(later, {1});  // threshold (1/2 + 0.6)/2 = 0.55 <= 0.6: merged
  compression.run();
  CHECK(compression.memory.threshold == Approx(0.55));
  const double share = std::exp(0.6) / (std::exp(0.6) + kE);
  check_row(later.value(0), {share});
}

TEST_CASE("d2o-code: a rank merges in all heads or in none, weights do not sum to 1",
          "[merge][stages]") {
  SlotCache a = slots({{1, 0}, {1, 0}, {0, 1}}, {{2}, {4}, {7}});
  SlotCache b = slots({{1, 0}, {0.6f, 0.8f}, {-1, 0}}, {{0}, {5}, {3}});
  Compression compression("d2o-code");
  compression.add(a, {1, 2});  // best cosines 1 and 0
  compression.add(b, {1, 2});  // 0.6 and -1: threshold 0.15, means of ranks 0.8 and -0.5
  compression.run();
  check_row(a.value(0), {3});
  check_row(b.value(0), {1.5});       // (0 + 0.6 * 5) / 2
  check_row(b.key(0), {0.68, 0.24});  // (1 + 0.6 * 0.6, 0.6 * 0.8) / 2
  CHECK(a.members(0) == std::vector<uint32_t>{0, 1});
  CHECK(b.members(0) == std::vector<uint32_t>{0, 1});
}

TEST_CASE("cam-expected: a value is spread over the next slots by its share of attention",
          "[merge][stages]") {
  SlotCache cache = slots({{1}, {1}, {1}, {1}, {1}}, {{8}, {1}, {1}, {4}, {1}});
  Compression compression("cam-expected");
  MergeOwner& owner = compression.add(cache, {0, 3});
  owner.attention = {0.1, 0.2, 0.3, 0.9, 0.1};
  compression.run();
  // Slot 0: later kept slots 1, 2, 4 have mean 0.2, so 1/2 of its value goes to slots 1 and 2.
  // Slot 3: the only later slot has 0.1, the ratio is cut to 1.
  check_row(cache.value(1), {3});
  check_row(cache.value(2), {3});
  check_row(cache.value(4), {5});
  CHECK(cache.members(1).empty());  // keys stay: entries are dropped, not merged
}

TEST_CASE("cam: a certain draw spreads all, an impossible one nothing", "[merge][stages]") {
  SlotCache cache = slots({{1}, {1}, {1}}, {{4}, {6}, {1}});
  Compression compression("cam");
  MergeOwner& owner = compression.add(cache, {0, 1});
  owner.attention = {0.5, 0, 0.2};
  compression.run();
  check_row(cache.value(2), {5});
}

TEST_CASE("value-fold: values join the nearest key's slot by their lengths", "[merge][stages]") {
  SlotCache cache = slots({{1, 0}, {1, 0}, {0, 1}, {-1, 0}}, {{3, 0}, {0, 1}, {0, 5}, {9, 9}});
  merge("value-fold", cache, {1, 3});  // slot 3 finds cosine 0 at best: nothing
  // omega = 1 * 1 / (1 + 3) = 1/4: (3, 1/4) / (5/4).
  check_row(cache.value(0), {2.4, 0.2});
  check_row(cache.key(0), {1, 0});
  check_row(cache.value(2), {0, 5});
}

TEST_CASE("kvmerger: neighbours of similar keys are joined until the budget is met",
          "[merge][stages]") {
  // Ten entries, budget 6: newest floor(2.04) = 2 and best floor(1.44) = 1 of the rest are safe.
  const std::vector<float> keys = {1, 0,    1, 0.1f, 0, 1, 1, 0, 1, 0.2f,
                                   1, 0.3f, 0, 1,    0, 1, 1, 1, 1, 1};
  const std::vector<double> score = {1, 2, 3, 9, 4, 1, 2, 3, 0, 0};
  ClusterRequest request;
  request.keys = keys.data();
  request.key_dim = 2;
  request.score = score;
  request.budget = 6;
  const Clusters clusters = Kinds<Merge>::find("kvmerger").cluster(request);
  CHECK(clusters.guarded == std::vector<uint32_t>{3, 8, 9});
  // Seven others for three places: four joins, 6-7 (cosine 1), 0-1, 4-5, then 5-6 before 1-2.
  REQUIRE(clusters.sets.size() == 6);
  CHECK(clusters.sets[0] == std::vector<uint32_t>{0, 1});
  CHECK(clusters.sets[1] == std::vector<uint32_t>{2});
  CHECK(clusters.sets[3] == std::vector<uint32_t>{4, 5, 6, 7});
  CHECK(clusters.pivot == std::vector<uint32_t>{1, 2, 3, 4, 8, 9});
}

TEST_CASE("kvmerger: Gaussian weights around the pivot", "[merge][stages]") {
  SlotCache cache = slots({{0, 0}, {2, 0}, {5, 5}}, {{0}, {1}, {7}});
  Compression compression("kvmerger");
  MergeOwner& owner = compression.add(cache, {0});
  owner.sets = {{1, {0, 1}}, {2, {2}}};
  compression.run();
  // One other member at squared distance 4 = sigma^2: weights exp(-1/2) and 1.
  const double w = std::exp(-0.5) / (1 + std::exp(-0.5));
  check_row(cache.key(1), {2 * (1 - w), 0});
  check_row(cache.value(1), {1 - w});
  check_row(cache.value(2), {7});
  CHECK(cache.members(1) == std::vector<uint32_t>{0, 1});
}
