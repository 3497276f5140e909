// Smoothing over neighbours, groups, priors, weights (policies.md 5.5 to 5.8), on paper.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "sim/stages/stages.hpp"
#include "tests/support/near.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

using test::near;

std::vector<double> smoothed(const std::string& changes, std::vector<double> row,
                             int64_t drift_tokens = 0) {
  const Settings settings = test::settings_with(changes);
  std::vector<double> out(row.size());
  PositionDrift drift(2);
  drift.add(0, 1, drift_tokens);
  Kinds<Smooth>::find(settings.text("smooth")).apply(settings, drift, row, out);
  return out;
}

TEST_CASE("average pooling counts the columns outside as zeros", "[stages]") {
  // SnapKV: avg_pool1d with padding counts k columns everywhere.
  CHECK_THAT(smoothed("smooth=avg,kernel=3", {1, 2, 6, 3}), near({1, 3, 11.0 / 3, 3}));
  CHECK_THAT(smoothed("smooth=avg,kernel=5", {5}), near({1}));
}

/// Every sum on its own, columns outside counted as 0 or as the column at the edge.
std::vector<double> plain_mean(const std::vector<double>& row, int64_t width, int64_t shift,
                               bool replicates) {
  std::vector<double> out;
  const int64_t last = std::ssize(row) - 1;
  for (int64_t i = 0; i <= last; ++i) {
    double sum = 0;
    for (int64_t c = i + shift - width / 2; c <= i + shift + width / 2; ++c)
      if (replicates || (c >= 0 && c <= last))
        sum += row[static_cast<size_t>(std::clamp<int64_t>(c, 0, last))];
    out.push_back(sum / static_cast<double>(width));
  }
  return out;
}

TEST_CASE("smoothing many columns at once gives the bits that one at a time gives", "[stages]") {
  for (const size_t columns : {size_t{1}, size_t{4}, size_t{9}, size_t{61}}) {
    std::vector<double> row;
    for (size_t i = 0; i < columns; ++i) row.push_back(std::sin(static_cast<double>(i * i)));
    for (const int64_t width : {1, 5, 13})
      CHECK(smoothed("smooth=avg,kernel=" + std::to_string(width), row) ==
            plain_mean(row, width, 0, false));
    // Widths 5, 5, 9 and 21, shifts to either side, also beyond the row.
    for (const int64_t drift : {0, 2500, -8100, 21000, -21000}) {
      const auto steps = static_cast<int64_t>(std::floor(static_cast<double>(drift) / 2000));
      const int64_t shift = drift > 0 ? steps : drift < 0 ? steps + 1 : 0;
      const auto widening = std::abs(drift) / 2000;
      CHECK(smoothed("smooth=aws", row, drift) ==
            plain_mean(row, std::max<int64_t>(5, 2 * widening + 1), shift, true));
    }
  }
}

TEST_CASE("a window far wider than the row takes the edges as often as it reaches beyond them",
          "[stages]") {
  // ReST-KV Eq. 11-13: W = 2 * 2 / 1e-9 + 1, as much before the shifted entry as after it: from
  // the entry itself on, all but a few columns are the last one's; or the first one's.
  const std::vector<double> row = {4, 1, 2, 8};
  CHECK_THAT(smoothed("smooth=aws,aws_beta=1e-9", row, 2), near({8, 8, 8, 8}));
  CHECK_THAT(smoothed("smooth=aws,aws_beta=1e-9", row, -2), near({4, 4, 4, 4}));
  // Width 2 * 10000 + 1, not shifted: (9998 + i) times 4 less what is inside, and so on; exact.
  const std::vector<double> out = smoothed("smooth=aws-code,aws_beta=2,aws_min=20001", row);
  for (int64_t i = 0; i < 4; ++i)  // the published code shifts by one without drift
    CHECK(out[static_cast<size_t>(i)] ==
          Approx((4.0 * static_cast<double>(9999 - i) + 15 + 8.0 * static_cast<double>(9998 + i)) /
                 20001)
              .epsilon(1e-14));
}

TEST_CASE("avg-replicate repeats the edge columns outside", "[stages]") {
  CHECK_THAT(smoothed("smooth=avg-replicate,kernel=3", {1, 2, 6, 3}),
             near({4.0 / 3, 3, 11.0 / 3, 4}));
}

TEST_CASE("avg-renormalized gives each row its sum back", "[stages]") {
  // DefensiveKV code: sums 12 before and 32/3 after, factor 9/8; a zero row stays zero.
  CHECK_THAT(smoothed("smooth=avg-renormalized,kernel=3", {1, 2, 6, 3}),
             near({9.0 / 8, 27.0 / 8, 33.0 / 8, 27.0 / 8}));
  CHECK_THAT(smoothed("smooth=avg-renormalized,kernel=3", {0, 0}), near({0, 0}));
}

TEST_CASE("max pooling looks at existing columns only", "[stages]") {
  CHECK_THAT(smoothed("smooth=max,kernel=3", {-1, -2, -6, -3}), near({-1, -1, -2, -3}));
}

TEST_CASE("the adaptive window widens with the drift and follows it", "[stages]") {
  // ReST-KV Eq. 11-13, beta 2, at least 1 wide. Delta 5: W = 2 floor(5/2) + 1 = 5, shift 2.
  // Entry 0: columns 0..4: 10/5; entry 2: columns 2..6, the last clamped: (2+3+4+5+5)/5.
  const std::vector<double> row = {0, 1, 2, 3, 4, 5};
  CHECK_THAT(smoothed("smooth=aws,aws_beta=2,aws_min=1", row, 5),
             near({2, 3, 19.0 / 5, 22.0 / 5, 24.0 / 5, 5}));
}

TEST_CASE("a drift forwards shifts the other way, truncated towards zero", "[stages]") {
  // Eq. 12, second branch as resolved: floor(-5/2) + 1 = -2; floor(-1/2) + 1 = 0.
  const std::vector<double> row = {0, 1, 2, 3, 4, 5};
  CHECK_THAT(smoothed("smooth=aws,aws_beta=2,aws_min=1", row, -5),
             near({0, 1.0 / 5, 3.0 / 5, 6.0 / 5, 2, 3}));
  CHECK_THAT(smoothed("smooth=aws,aws_beta=2,aws_min=1", row, -1), near(row));
}

TEST_CASE("as printed a drift to the rear shifts forwards, against it", "[stages]") {
  // ReST-KV Eq. 12: floor(1/2) + 1 = 1; and 1 without drift.
  const std::vector<double> row = {0, 1, 2, 3, 4, 5};
  for (const int drift : {-1, 0})
    CHECK_THAT(smoothed("smooth=aws-printed,aws_beta=2,aws_min=1", row, drift),
               near({1, 2, 3, 4, 5, 5}));
  CHECK(smoothed("smooth=aws-printed,aws_beta=2,aws_min=1", row, 5) ==
        smoothed("smooth=aws,aws_beta=2,aws_min=1", row, 5));
}

TEST_CASE("without drift only the least width smooths, and the published code shifts by one",
          "[stages]") {
  const std::vector<double> row = {0, 3, 6, 9};
  CHECK_THAT(smoothed("smooth=aws,aws_beta=2,aws_min=3", row), near({1, 3, 6, 8}));
  CHECK_THAT(smoothed("smooth=aws-code,aws_beta=2,aws_min=3", row), near({3, 6, 8, 9}));
}

/// Two halves of three rows each whose best entries have the sums of positions that are given.
PositionDrift drift_of(const std::vector<int64_t>& sums, int64_t count) {
  PositionDrift drift(std::ssize(sums));
  for (size_t j = 0; j < sums.size(); ++j) drift.add(static_cast<int64_t>(j), count, sums[j]);
  return drift;
}

TEST_CASE("a drift of sums that are equal is exactly none, and multiples of beta are exact",
          "[stages]") {
  // ReST-KV Eq. 10: thirds that float64 adds up to -4e-16.
  const PositionDrift none = drift_of({1, 1, 8, 2, 4, 4}, 3);
  CHECK((none.sign() == 0 && none.value() == 0));
  CHECK((none.floor_over(Decimal(2)) == 0 && none.floor_size_over(Decimal(2)) == 0));
  // (30 - 21) / 9 = 1: ten times 0.1, which float64 divides to just below or above.
  const PositionDrift one = drift_of({9, 10, 11, 6, 7, 8}, 3);
  const PositionDrift back = drift_of({6, 7, 8, 9, 10, 11}, 3);
  for (const char* beta : {"0.1", "0.01", "0.05", "0.2"}) {
    const Decimal step = *Decimal::parse(beta);
    const auto steps = static_cast<int64_t>(std::lround(1 / step.value()));
    CHECK((one.floor_over(step) == steps && one.floor_size_over(step) == steps));
    CHECK((back.floor_over(step) == -steps && back.floor_size_over(step) == steps));
  }
  CHECK((one.floor_over(*Decimal::parse("0.3")) == 3));
  CHECK((back.floor_over(*Decimal::parse("0.3")) == -4));
  // Rows with fewer entries than K: 1/2 + 2/3 - 7/6 = 0 over odd halves of one row each.
  PositionDrift uneven(4);
  uneven.add(0, 2, 1);
  uneven.add(1, 3, 2);
  uneven.add(2, 6, 7);
  CHECK((uneven.sign() == 0 && uneven.value() == 0));
}

TEST_CASE("the published code shifts by one where the sums of positions are equal", "[stages]") {
  // K = 3 of the candidates 0..5. Sums of positions 3, 4, 4 in front and 3, 3, 5 in the rear: no
  // drift, where float64 means of thirds differ by -2e-16.
  test::SmallRun small;
  small.prompt = 12;
  const std::vector<std::vector<size_t>> best = {{0, 1, 2}, {0, 1, 3}, {0, 1, 3},
                                                 {0, 1, 2}, {0, 1, 2}, {0, 1, 4}};
  small.weights.resize(1);
  for (size_t j = 0; j <= best.size(); ++j) {
    small.positions.push_back(static_cast<int64_t>(6 + j));
    std::vector<double>& weights = small.weights[0].emplace_back(7 + j, 1.0);
    for (size_t k = 0; j < best.size() && k < 3; ++k)
      weights[best[j][k]] = 4 + static_cast<double>(k);
  }
  const auto run = small.build();
  const std::string record = "restkv:code,window=6,indicator=attention,aggregate=mean,";
  const auto before = test::score_row(*run, record + "smooth=none", "9");
  CHECK_THAT(test::score_row(*run, record + "aws_min=1,aws_beta=1", "9"),
             near({before[1], before[2], before[3], before[4], before[5], before[5]}));
}

std::vector<double> grouped(const std::string& kind) {
  const auto& group = Kinds<Group>::find(kind);
  std::vector<double> out(2, -1);
  group.add(0, 2, std::vector<double>{1, 8}, out);
  group.add(1, 2, std::vector<double>{3, 4}, out);
  return out;
}

TEST_CASE("the heads of a group become their mean, maximum or sum", "[stages]") {
  CHECK_THAT(grouped("mean"), near({2, 6}));
  CHECK_THAT(grouped("max"), near({3, 8}));  // DefensiveKV footnote 1
  CHECK_THAT(grouped("sum"), near({4, 12}));
  CHECK_THAT(grouped("layer-mean"), near({2, 6}));
}

/// Two KV heads of one query head each with attention (1,3,.)/8 and (2,2,.)/8.
test::SmallRun two_heads_of_three() {
  test::SmallRun small;
  small.prompt = 3;
  small.query_heads = small.kv_heads = 2;
  small.weights = {{{1, 3, 4}}, {{2, 2, 4}}};
  return small;
}

TEST_CASE("layer-mean gives every KV head the same score", "[stages]") {
  // TOVA: mean over all heads: (3/16, 5/16).
  for (int64_t owner = 0; owner < 2; ++owner)
    CHECK_THAT(test::score_row(*two_heads_of_three().build(), "tova", "1", owner),
               near({3.0 / 16, 5.0 / 16}));
}

TEST_CASE("pooling and maximum over queries do not commute, so their order counts", "[stages]") {
  // Rows (6,0,0,.) and (0,0,6,.) of 12, kernel 3: max of pooled rows: (2,2,2)/12; pooled maximum
  // (6,0,6): (2,4,2)/12.
  test::SmallRun small;
  small.prompt = 5;
  small.positions = {3, 4, 5};
  small.weights = {{{6, 0, 0, 6}, {0, 0, 6, 6, 0}}};
  const auto run = small.build();
  const std::string record = "snapkv,window=2,kernel=3,aggregate=max,order=";
  CHECK_THAT(test::score_row(*run, record + "sag", "3"), near({1.0 / 6, 1.0 / 6, 1.0 / 6}));
  CHECK_THAT(test::score_row(*run, record + "asg", "3"), near({1.0 / 6, 1.0 / 3, 1.0 / 6}));
}

TEST_CASE("the head-mean prior lifts scores to their mean and remembers the score for ties",
          "[stages]") {
  // DefensiveKV Algorithm 1, line 6: max(s, mean) with mean 4.
  std::vector<double> row = {1, 2, 9};
  Kinds<Prior>::find("head-mean").apply(test::settings_with(""), row);
  CHECK_THAT(row, near({4, 4, 9}));
  row = {1, 2, 9};
  Kinds<Prior>::find("mean-share").apply(test::settings_with("prior_share=0.25"), row);
  CHECK_THAT(row, near({1, 2, 9}));
  Kinds<Prior>::find("mean-share").apply(test::settings_with("prior_share=0.4"), row);
  CHECK_THAT(row, near({1.6, 2, 9}));
  row = {0.5, 2};
  Kinds<Prior>::find("constant").apply(test::settings_with("prior_value=1"), row);
  CHECK_THAT(row, near({1, 2}));
}

const std::string kWeighted = "snapkv,window=1,smooth=none,";

/// The two heads' values: (1,1) (0,2) and (3,4) (0,0).
test::SmallRun with_values() {
  test::SmallRun small = two_heads_of_three();
  small.values = {{{1, 1}, {0, 2}, {9, 9}}, {{3, 4}, {0, 0}, {9, 9}}};
  return small;
}

TEST_CASE("weights multiply the score, epsilon included, by a norm of the value", "[stages]") {
  // CriticalKV: (s + epsilon) w. Scores (1,3)/8 and (2,2)/8.
  const auto run = with_values().build();
  const auto row = [&](const std::string& weight, int64_t owner) {
    return test::score_row(*run, kWeighted + "weight=" + weight, "1", owner);
  };
  CHECK_THAT(row("value-l1", 0), near({2.0 / 8, 6.0 / 8}));
  CHECK_THAT(row("value-l1", 1), near({14.0 / 8, 0}));
  CHECK_THAT(row("value-l2,weight_epsilon=0.125", 0), near({2.0 / 8 * std::sqrt(2.0), 1}));
  CHECK_THAT(row("value-l2,weight_epsilon=0.125", 1), near({15.0 / 8, 0}));
}

TEST_CASE("projected norms are averaged over the query heads of the group", "[stages]") {
  // One KV head, two query heads with W = 1 and W = -3: mean |v W| = 2 |v|. Mean attention 1/4.
  test::SmallRun small;
  small.prompt = 3;
  small.query_heads = 2;
  small.weights = {{{1, 1, 2}}, {{1, 1, 2}}};
  small.values = {{{5}, {-1}, {0}}};
  small.output = {{{1}}, {{-3}}};
  const auto run = small.build();
  for (const char* norm : {"projected-l1", "projected-l2"}) {
    CHECK_THAT(test::score_row(*run, kWeighted + "weight=" + norm, "1"), near({10.0 / 4, 2.0 / 4}));
  }
  CHECK_THAT(test::score_row(*run, kWeighted + "weight=projected-l1,granularity=query", "1", 1),
             near({15.0 / 4, 3.0 / 4}));
}

TEST_CASE("normalize divides by the head's, the layer's or the token's sum of weights",
          "[stages]") {
  // w = (2,2) and (7,0): head sums 4 and 7, layer sum 11 (DefensiveKV Algorithm 2, line 11),
  // token sums 9 and 2. Products (2,6)/8 and (14,0)/8.
  const auto run = with_values().build();
  const auto row = [&](const std::string& kind, int64_t owner) {
    return test::score_row(*run, kWeighted + "weight=value-l1,normalize=" + kind, "1", owner);
  };
  CHECK_THAT(row("head-sum", 0), near({2.0 / 32, 6.0 / 32}));
  CHECK_THAT(row("head-sum", 1), near({14.0 / 56, 0}));
  CHECK_THAT(row("layer-sum", 0), near({2.0 / 88, 6.0 / 88}));
  CHECK_THAT(row("layer-sum", 1), near({14.0 / 88, 0}));
  CHECK_THAT(row("token-heads", 0), near({2.0 / 72, 6.0 / 16}));
  CHECK_THAT(row("token-heads", 1), near({14.0 / 72, 0}));
}

TEST_CASE("a sum of weights that is zero divides nothing", "[stages]") {
  test::SmallRun small = two_heads_of_three();
  small.values = {{{0}, {1}, {1}}, {{0}, {1}, {1}}};
  CHECK_THAT(
      test::score_row(*small.build(), kWeighted + "weight=value-l1,normalize=token-heads", "1"),
      near({0, 3.0 / 16}));
}

}  // namespace
}  // namespace kvsim
