// Measures of the attention itself, on numbers that can be checked by hand (metrics.md 1, 5).
#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/formulas.hpp"

using namespace kvsim;

namespace {

/// One KV head with the given rows of its query heads, [head][row][column]; the last column is the
/// query's own.
AttentionBlock block_of(const std::vector<std::vector<std::vector<float>>>& heads) {
  AttentionBlock block;
  block.heads = static_cast<int>(heads.size());
  block.rows = static_cast<int64_t>(heads[0].size());
  block.columns = static_cast<int64_t>(heads[0][0].size());
  block.positions.assign(heads[0].size(), block.columns - 1);
  for (const auto& head : heads)
    for (const auto& row : head)
      block.attention.insert(block.attention.end(), row.begin(), row.end());
  return block;
}

}  // namespace

TEST_CASE("the share of the largest entries counts whole entries, rounded up", "[dynamics]") {
  AttentionCdf cdf(1, 2);
  std::vector<float> row(101, 0.001f), other(101, 0.0f);
  row[7] = 0.6f, row[50] = 0.2f;
  other[3] = 0.25f;  // a sink has the rest: shares are of what entries hold
  cdf.add(block_of({{row, other}}), 0);
  const double all = 0.8 + 99 * 0.001;
  CHECK(cdf.mean_of(0) == Approx((0.8 / all + 1) / 2));  // 1 % of 101 are 2 entries
  CHECK(cdf.mean_of(1) == Approx((0.801 / all + 1) / 2));
  CHECK(cdf.mean_of(5) == Approx(((0.8 + 49 * 0.001) / all + 1) / 2));
  CHECK(cdf.p05_of(0) == Approx(0.8 / all + 0.05 * (1 - 0.8 / all)));
}

TEST_CASE("late importance counts dropped entries among those attended to most", "[dynamics]") {
  // n = 10: the two largest count. Heads 0 and 1 share a KV head that dropped entries 0, 1 and 2.
  DroppedEntries shared{false, Table<uint8_t>(1, 10)};
  for (const int i : {0, 1, 2}) shared.owners(0, i) = 1;
  DroppedEntries own{true, Table<uint8_t>(2, 10)};
  own.owners(0, 9) = 1;  // the other head dropped nothing
  std::vector<float> a(10, 0.0f), b(10, 0.0f), c(10, 0.0f), d(10, 0.0f);
  a[0] = 0.5f, a[5] = 0.4f;
  b[1] = 0.5f, b[0] = 0.4f;
  c[9] = 0.9f;  // the second is a tie of all others: the more recent, 8
  d[4] = 0.5f, d[3] = 0.4f;
  LateImportance late({shared, own}, 2, 10, 2);
  late.add(block_of({{a, b}, {c, d}}), 0);
  CHECK(late.result(0).share == Approx((1 + 2 + 0 + 0) / 8.0));
  CHECK(late.result(0).chance == Approx(0.3));
  CHECK(late.result(0).recall == Approx((2 / 3.0 + 0) / 2));
  CHECK(late.result(1).share == 0);
  CHECK(late.result(1).chance == Approx(0.05));
  CHECK(late.result(1).recall == 0);  // of head 0 alone: undefined where nothing was dropped
}

TEST_CASE("attention that changes between windows only is local, constant attention undefined",
          "[dynamics]") {
  std::vector<std::vector<float>> switching, constant, alternating;
  for (int t = 0; t < 35; ++t) {  // the last three are in no window
    switching.push_back({t < 16 ? 0.5f : 0.25f, 0.1f});
    constant.push_back({0.5f, 0.1f});
    alternating.push_back({t % 2 ? 0.5f : 0.25f, 0.1f});
  }
  Locality locality(3, 2, 35, 0);
  const AttentionBlock all = block_of({switching, constant, alternating});
  locality.add(all, 0);
  CHECK(locality.result(0).within == Approx(0).margin(1e-12));
  CHECK(locality.result(0).locality == Approx(1));
  CHECK(std::isnan(locality.result(1).locality));
  CHECK(locality.result(2).within == Approx(1));
  CHECK(locality.result(2).locality < 0);
  Locality short_one(3, 2, 31, 0);
  short_one.add(all, 0);
  CHECK(std::isnan(short_one.result(0).locality));
}

TEST_CASE("an estimate of risk is judged by ranks, ratio and direction", "[risk]") {
  const std::vector<double> risk = {1, 2, 4, 8}, estimate = {2, 1, 4, 16}, prior(4, 3.0);
  const RiskQuality quality = risk_quality(estimate, risk, prior);
  CHECK(quality.spearman == Approx(0.8));
  CHECK(quality.log_ratio_median == Approx(std::log(2.0) / 2));
  CHECK(quality.underestimated == 0.25);
  CHECK(quality.prior_exceeds == 0.5);
  CHECK(std::isnan(risk_quality(estimate, risk, {}).prior_exceeds));
  const RiskQuality none = risk_quality({}, {}, {});
  CHECK((std::isnan(none.spearman) && std::isnan(none.log_ratio_median) &&
         std::isnan(none.underestimated)));
}

TEST_CASE("drift is the front half's mean position minus the rear half's", "[dynamics]") {
  BestDrift drift({1, 2, 0}, 1, 3);  // front: row 0; rear: rows 1 and 2
  drift.add(0, 0, std::vector<double>{5, 1, 0, 0});
  drift.add(0, 1, std::vector<double>{0, 5, 1, 0});
  drift.add(0, 2, std::vector<double>{0, 1, 1, 5});
  CHECK(drift.drift(0, 0).value() == 0 - (1 + 3) / 2.0);
  CHECK(drift.drift(1, 0).value() == 0.5 - (1.5 + 2.5) / 2);  // a tie takes the more recent, 2
  CHECK(drift.drift(2, 0).sign() == 0);
  CHECK(std::isnan(drift.mean_position(2, 0, 0)));
  const auto tokens = [](int64_t front_minus_rear) {
    PositionDrift made(2);
    made.add(0, 1, front_minus_rear);
    return made;
  };
  const Decimal beta(2000);
  CHECK(adaptive_width(tokens(1999), beta) == 5);
  CHECK(adaptive_width(tokens(-6001), beta) == 7);
  CHECK(adaptive_shift(tokens(0), beta) == 0);
  CHECK(adaptive_shift(tokens(4500), beta) == 2);
  CHECK(adaptive_shift(tokens(-4500), beta) == -2);  // floor(-2.25) + 1
}

TEST_CASE("parts of the prompt cover it without gaps", "[dynamics]") {
  const auto parts = prompt_parts(10, 4);
  CHECK(parts == std::vector<Range>{{0, 2}, {2, 5}, {5, 7}, {7, 10}});
  CHECK(prompt_parts(3, 4).size() == 3);
}
