#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/best_setting.hpp"

using namespace kvsim;

namespace {

const Criterion kMean{.variable = "x"};
const Criterion kWorstError{.variable = "x", .over = Fold::worst, .more_is_better = false};

SettingSeries constant(double value, size_t steps) { return {std::vector<double>(steps, value)}; }

}  // namespace

TEST_CASE("the best setting is the largest mean or the smallest worst error", "[statistics]") {
  const std::vector<SettingSeries> settings = {
      {{0.2, 0.4, 0.6}}, {{0.5, 0.5, 0.8}}, {{0.1, 0.45, 0.4}}};
  const BestSetting mean = best_setting(settings, 0, kMean, 0);
  CHECK(mean.best == 1);
  CHECK(mean.value == Approx(0.6));
  CHECK(mean.usual == Approx(0.4));
  CHECK(mean.gain == Approx(0.2));
  const BestSetting worst = best_setting(settings, 0, kWorstError, 0);
  CHECK(worst.best == 2);
  CHECK(worst.value == Approx(0.45));
  CHECK(worst.gain == Approx(0.15));
}

TEST_CASE("stream error is judged by its root mean square", "[statistics]") {
  const Criterion& stream = criteria().front();
  CHECK(stream.variable == "stream_error");
  const BestSetting found = best_setting({{{0.3, 0.4}}, {{0.1, 0.5}}}, 1, stream, 0);
  CHECK(found.best == 0);  // although the mean of the other is smaller
  CHECK(found.value == Approx(std::sqrt(0.125)));
  CHECK(found.gain == Approx(std::sqrt(0.13) - std::sqrt(0.125)));
}

TEST_CASE("stream error leads, without it output error, with retained importance beside it",
          "[statistics]") {
  using Names = std::vector<std::string>;
  CHECK(judged_measures() ==
        Names{"stream_error", "retained_importance", "output_error", "residual_error"});
  CHECK(usual_measures(judged_measures()) == Names{"stream_error", "retained_importance"});
  CHECK(usual_measures({"retained_importance", "output_error"}) ==
        Names{"output_error", "retained_importance"});
  CHECK(usual_measures({}).empty());
}

TEST_CASE("among equal settings the default is the best, without it the first", "[statistics]") {
  const std::vector<SettingSeries> settings = {constant(0.5, 20), constant(0.7, 20),
                                               constant(0.7 + 1e-12, 20), constant(0.7, 20)};
  CHECK(best_setting(settings, 3, kMean, 0).best == 3);
  CHECK(best_setting(settings, 0, kMean, 0).best == 1);
  const BestSetting none = best_setting(settings, -1, kMean, 0);
  CHECK(none.best == 1);
  CHECK(std::isnan(none.gain));
  CHECK(none.chosen == 1);
}

TEST_CASE("undefined steps are left out of a setting's value", "[statistics]") {
  const double nan = std::nan("");
  const BestSetting found = best_setting({{{0.2, nan, 0.4}}, {{nan, nan, 0.2}}}, 1, kMean, 0);
  CHECK(found.best == 0);
  CHECK(found.value == Approx(0.3));
}

TEST_CASE("intervals are those of the bootstrap over steps, and gains are paired", "[statistics]") {
  SettingSeries usual(1), better(1);
  for (int t = 0; t < 64; ++t) {
    usual[0].push_back(0.5 + 0.3 * std::sin(t));
    better[0].push_back(usual[0].back() + 0.01);  // always by as much
  }
  const BestSetting found = best_setting({usual, better}, 0, kMean, 7);
  const Interval direct = estimate(better[0], Units::steps, Scale::share).interval;
  CHECK(found.interval.low == Approx(direct.low));
  CHECK(found.interval.high == Approx(direct.high));
  CHECK(found.interval.high - found.interval.low > 0.02);
  CHECK(found.gain_interval.low == Approx(0.01));
  CHECK(found.gain_interval.high == Approx(0.01));
  CHECK(found.chosen == 1);
}

TEST_CASE("with several traces the interval is over traces", "[statistics]") {
  // Setting 1 is better on two traces of three, by far on one of them.
  const std::vector<SettingSeries> settings = {{{0.5, 0.5}, {0.5, 0.5}, {0.6, 0.6}},
                                               {{0.9, 0.7}, {0.6, 0.6}, {0.4, 0.4}}};
  const BestSetting found = best_setting(settings, 0, kMean, 3);
  CHECK(found.best == 1);
  CHECK(found.value == Approx(0.6));
  const std::vector<double> values = {0.8, 0.6, 0.4};
  const Interval direct = estimate(values, Units::traces, Scale::share).interval;
  CHECK(found.interval.low == Approx(direct.low));
  CHECK(found.interval.high == Approx(direct.high));
  // Gains 0.3, 0.1 and -0.2: mean 0.2 / 3, deviation 0.2517, t of 2 degrees 4.3027.
  CHECK(found.gain_interval.low == Approx(0.2 / 3 - 4.3027 * 0.25166 / std::sqrt(3)).epsilon(1e-4));
  CHECK(found.chosen > 0.5);
  CHECK(found.chosen < 1);
}

TEST_CASE("a setting that is not ranked is not the best", "[statistics]") {
  const std::vector<SettingSeries> settings = {
      {{0.2, 0.4, 0.6}}, {{0.9, 0.9, 0.9}}, {{0.3, 0.5, 0.6}}};
  const BestSetting found = best_setting(settings, 1, kMean, 0, {true, false, true});
  CHECK(found.best == 2);
  CHECK(found.gain == Approx(-0.433333));
  CHECK(found.chosen > 0.9);
}

TEST_CASE("over traces errors have their geometric mean and an interval above 0", "[statistics]") {
  const std::vector<SettingSeries> settings = {{{0.01, 0.01}, {0.02, 0.02}, {0.9, 0.9}},
                                               {{0.02, 0.02}, {0.03, 0.03}, {0.9, 0.9}}};
  const BestSetting found = best_setting(settings, -1, criteria().front(), 0);
  CHECK(found.best == 0);
  CHECK(found.value == Approx(std::cbrt(0.01 * 0.02 * 0.9)));
  CHECK(found.interval.low > 0);
}
