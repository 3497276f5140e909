#include <array>
#include <catch2/catch.hpp>

#include "analysis/ranking.hpp"
#include "io/side_files.hpp"
#include "tests/support/results.hpp"

namespace kvsim {
namespace {

using Levels = std::array<std::array<double, 2>, 4>;
constexpr Levels kLevels = {{{0.4, 0.2}, {0.1, 0.3}, {0.1, 0.1}, {0.01, 0.01}}};

/// Four policies at two budgets over 64 steps with constant errors, but "close" swings about
/// "good".
Dataset results(const std::string& good = "good", const Levels& level = kLevels) {
  constexpr int kSteps = 64;
  Dataset dataset;
  test::add(dataset, "policy", std::vector<std::string>{"bad", "close", good, "oracle"});
  test::add(dataset, "budget", std::vector<double>{0.1, 0.5});
  test::add(dataset, "step", std::vector<int64_t>(kSteps));
  test::add(dataset, "layer", std::vector<int32_t>{0});
  test::add(dataset, "budget_label", std::vector<std::string>{"0.1", "0.5"});
  std::vector<double> errors;
  std::vector<double> summary;
  for (int p = 0; p < 4; ++p)
    for (int b = 0; b < 2; ++b) {
      for (int t = 0; t < kSteps; ++t)
        errors.push_back(level[p][b] * (p == 1 ? (t < 32 ? 0.8 : 1.25) : 1));
      summary.push_back(level[p][b] * (p == 1 ? 1.05 : 1));
    }
  test::add(dataset, "stream_error", errors);
  test::add(dataset, "stream_error_rms", summary);
  using Why = std::vector<uint8_t>;
  test::add(dataset, "unranked", Why{0, 0, 0, 0, 0, 0, 1, 1});
  return dataset;
}

}  // namespace

TEST_CASE("a verdict sorts by stream error, marks the best and what is not told apart",
          "[verdict]") {
  const Dataset dataset = results();
  const Verdict found = verdict(dataset);
  CHECK(found.order == std::vector<int64_t>{2, 1, 0, 3});
  CHECK(found.apart == std::vector<bool>{false, false, false, true});
  CHECK(found.marks[2] == std::vector<Mark>{Mark::best, Mark::best});
  CHECK(found.marks[1] == std::vector<Mark>{Mark::equal, Mark::none});
  CHECK(found.marks[0] == std::vector<Mark>{Mark::none, Mark::none});
  CHECK(found.marks[3] == std::vector<Mark>{Mark::none, Mark::none});
  CHECK(advice(dataset, found) ==
        "on this text use good at 0.1, 0.5; next: 2 policies cannot be told apart at 0.1: replay "
        "more traces\n");
  CHECK(verdict(Dataset()).order.empty());
}

TEST_CASE("a name too long for its column stands whole above its row", "[verdict]") {
  const std::string name = "good,quantize=per-token,quant_bits=4";
  const Dataset dataset = results(name);
  const std::string text = summary_table(dataset, {.width = 80});
  CHECK_THAT(text, Catch::Contains("\n" + name + "\n" + std::string(11, ' ') + "0.1  0.100*\n"));
  CHECK_THAT(summary_table(dataset, {.width = 120}), Catch::Contains("\n" + name + "     0.1"));
}

TEST_CASE("of policies that are the same at a budget the plainest is the one to use", "[verdict]") {
  const Dataset dataset = results("good", {{{0.1, 0.1}, {0.9, 0.9}, {0.1, 0.1}, {0.01, 0.01}}});
  const Verdict found = verdict(dataset);
  CHECK(advice(dataset, found) ==
        "on this text use bad at 0.1, 0.5; next: change one setting of bad (kvsim sweep), as "
        "hindsight has only 0.10 of its error at 0.1\n");
}

namespace {

constexpr uint8_t kMore = static_cast<uint8_t>(Unranked::holds_more);
constexpr uint8_t kLess = static_cast<uint8_t>(Unranked::holds_less);

/// What the four policies hold, and what follows from it.
void hold(Dataset& dataset, const std::vector<double>& factor) {
  std::vector<uint8_t> why;
  std::vector<double> given, held;
  for (size_t cell = 0; cell < factor.size(); ++cell) {
    why.push_back(static_cast<uint8_t>(unranked_by(factor[cell])));
    given.push_back(cell % 2 == 0 ? 0.1 : 0.5);
    held.push_back(given.back() * factor[cell]);
  }
  dataset.at("unranked").values = why;
  test::add(dataset, "held_of_budget", factor);
  test::add(dataset, "held_share", held);
  test::add(dataset, "budget_share", given);
}

}  // namespace

TEST_CASE("what holds more than the budget gives has no star and is not recommended", "[verdict]") {
  Dataset dataset = results();
  hold(dataset, {1, 1, 1, 1, 1.25, 1.04, 1, 1});
  const Verdict found = verdict(dataset);
  CHECK(found.marks[2] == std::vector<Mark>{Mark::more, Mark::none});
  CHECK(found.marks[3] == std::vector<Mark>{Mark::best, Mark::best});
  CHECK(advice(dataset, found).starts_with("on this text use oracle at 0.1, 0.5"));
  CHECK_THAT(summary_table(dataset, {}),
             Catch::Contains("0.100>") && Catch::Contains("good 1.25 times at 0.1\n"));
}

TEST_CASE("what does not hold the budget is compared between its own budgets", "[verdict]") {
  // "good" holds 0.05 and 0.6 of the bytes, so that 0.1 and 0.5 lie between.
  Dataset dataset = results("good", {{{0.4, 0.2}, {0.3, 0.3}, {0.1, 0.01}, {0.09, 0.02}}});
  hold(dataset, {1, 1, 1, 1, 0.5, 1.2, 1, 1});
  const Verdict found = verdict(dataset);
  CHECK(found.marks[2] == std::vector<Mark>{Mark::less, Mark::more});
  REQUIRE(found.at_equal_bytes.size() == 2);
  const double along = std::log(2.0) / std::log(12.0);
  CHECK(found.at_equal_bytes[0].value == Approx(0.1 * std::pow(0.1, along)));
  CHECK(found.at_equal_bytes[0].ratio.value ==
        Approx(std::pow(10 / 9.0 * std::pow(0.1, along), 2)));
  CHECK_THAT(summary_table(dataset, {}),
             Catch::Contains("at equal bytes, between its own budgets: good 0.0526 (less than the "
                             "least) at 0.1, 0.0118 (less than the least) at 0.5\n"));
  CHECK(found.order[0] == 2);  // by what it would lose there
  CHECK_THAT(summary_table(dataset, {}), !Catch::Contains("not compared at equal bytes"));
  Dataset more = results();
  hold(more, {1, 1, 1, 1, 1.3, 1.2, 1, 1});  // 0.13 and 0.6: nothing below 0.1
  CHECK(verdict(more).equal_bytes(2, 0) == nullptr);
  CHECK_THAT(
      summary_table(more, {}),
      Catch::Contains("not compared at equal bytes, as its own budgets hold only more or only "
                      "less: good at 0.1\n"));
}

TEST_CASE("numbers at a share of bytes lie on a line between a policy's own points", "[verdict]") {
  const std::vector<Point> points = {{4, {0.01, 0.4}}, {1, {0.16, 0.2}}, {8, {0.001, 0.5}}};
  const auto check = [&](double share, Scale scale, const std::vector<double>& wanted) {
    CHECK_THAT(at_share(points, share, scale), Catch::Approx(wanted));
  };
  check(2, Scale::log, {0.04, std::sqrt(0.08)});
  check(2, Scale::share, {0.085, 0.3});
  check(4, Scale::log, {0.01, 0.4});
  CHECK(at_share(points, 0.99, Scale::plain) == std::vector<double>{0.16, 0.2});  // within 2 %
  CHECK(at_share(points, 0.9, Scale::plain).empty());
  CHECK(at_share(points, 9, Scale::plain).empty());
  CHECK(at_share({}, 1, Scale::plain).empty());
}

TEST_CASE("where none holds the budget, those that hold less and alike are ranked", "[verdict]") {
  Dataset dataset = results();
  hold(dataset, {0.4, 0.4, 0.41, 0.41, 0.4, 3, 2, 2});
  const Verdict found = verdict(dataset);
  CHECK(found.held == std::vector<double>{0.41, 0.41});
  CHECK(found.marks[2] == std::vector<Mark>{Mark::best, Mark::more});
  CHECK(found.marks[1] == std::vector<Mark>{Mark::equal, Mark::none});
  CHECK(found.marks[3] == std::vector<Mark>{Mark::more, Mark::more});
}

TEST_CASE("nothing is ranked where all hold more", "[verdict]") {
  Dataset dataset = results();
  dataset.at("unranked").values = std::vector<uint8_t>{kMore, kMore, kMore, kMore,
                                                       kMore, kMore, kMore, kMore};
  const Verdict found = verdict(dataset);
  CHECK(found.marks[2] == std::vector<Mark>{Mark::more, Mark::more});
  CHECK(advice(dataset, found).empty());
  dataset.at("unranked").values = std::vector<uint8_t>{kMore, kMore, kMore, kMore,
                                                       kMore, kMore, kLess, kLess};
  CHECK(verdict(dataset).marks[3] == std::vector<Mark>{Mark::less, Mark::less});  // by an unknown
}

}  // namespace kvsim
