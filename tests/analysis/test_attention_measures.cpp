// Measures of the attention itself, on numbers that can be checked by hand (metrics.md 1, 5).
#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/formulas.hpp"

using namespace kvsim;

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
  const auto parts = measured_parts(300);
  CHECK(parts.size() == 128);
  CHECK((parts.front().begin == 0 && parts.back().end == 300));
  for (size_t p = 1; p < parts.size(); ++p) CHECK(parts[p].begin == parts[p - 1].end);
  CHECK(measured_parts(3) == std::vector<Range>{{0, 1}, {1, 2}, {2, 3}});
}
