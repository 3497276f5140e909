#include <array>
#include <catch2/catch.hpp>

#include "analysis/verdict.hpp"
#include "io/tables.hpp"
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
  return dataset;
}

}  // namespace

TEST_CASE("a verdict sorts by stream error, marks the best and what is not told apart",
          "[verdict]") {
  using Mark = Verdict::Mark;
  const Dataset dataset = results();
  const Verdict found = verdict(dataset, {false, false, false, true});
  CHECK(found.order == std::vector<int64_t>{2, 1, 0, 3});
  CHECK(found.apart == std::vector<bool>{false, false, false, true});
  CHECK(found.marks[2] == std::vector<Mark>{Mark::best, Mark::best});
  CHECK(found.marks[1] == std::vector<Mark>{Mark::equal, Mark::none});
  CHECK(found.marks[0] == std::vector<Mark>{Mark::none, Mark::none});
  CHECK(found.marks[3] == std::vector<Mark>{Mark::none, Mark::none});
  CHECK(advice(dataset, found) ==
        "on this text use good at 0.1, 0.5; next: 2 policies cannot be told apart at 0.1: replay "
        "more traces\n");
  CHECK(verdict(Dataset(), {}).order.empty());
}

TEST_CASE("a name too long for its column stands whole above its row", "[verdict]") {
  const std::string name = "good,quantize=per-token,quant_bits=4";
  const Dataset dataset = results(name);
  const std::string text = summary_table(dataset, {.width = 80});
  CHECK_THAT(text, Catch::Contains("\n" + name + "\n" + std::string(11, ' ') + "0.1  0.100\n"));
  CHECK_THAT(summary_table(dataset, {.width = 120}), Catch::Contains("\n" + name + "     0.1"));
}

TEST_CASE("of policies that are the same at a budget the plainest is the one to use", "[verdict]") {
  const Dataset dataset = results("good", {{{0.1, 0.1}, {0.9, 0.9}, {0.1, 0.1}, {0.01, 0.01}}});
  const Verdict found = verdict(dataset, {false, false, false, true});
  CHECK(advice(dataset, found) ==
        "on this text use bad at 0.1, 0.5; next: change one setting of bad (kvsim sweep), as "
        "hindsight has only 0.10 of its error at 0.1\n");
}

}  // namespace kvsim
