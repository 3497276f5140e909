#include <catch2/catch.hpp>
#include <limits>

#include "cli/tables.hpp"
#include "tests/support/results.hpp"

namespace kvsim::cli {
namespace {

using test::add;

/// Two policies, budgets 0.5 and 0.1, steps at positions 8 to 11; the second policy loses nothing.
Dataset results() {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  Dataset dataset;
  add(dataset, "policy", std::vector<std::string>{"knorm", "full"});
  add(dataset, "budget", std::vector<double>{0.5, 0.1});
  add(dataset, "step", std::vector<int64_t>{8, 9, 10, 11});
  add(dataset, "budget_label", std::vector<std::string>{"0.5", "10%"});
  add(dataset, "stream_error",
      std::vector<double>{0.1, 0.2, 0.3, 0.4, 0.25, kNone, 0.5, 0.25, 0, 0, 0, 0, 0, 0, 0, 0});
  return dataset;
}

const std::vector<std::string> kWords = {"a", "b", "c", "d", "e", "f", "g", "h", " the", "x", "\n"};

}  // namespace

TEST_CASE("steps of largest stream error come first, earlier ones on ties", "[cli]") {
  const auto losses = expected_losses(results(), 0, 1, 5);
  REQUIRE(losses.size() == 3);  // one step was not evaluated
  CHECK(losses[0].step == 10);
  CHECK(losses[0].stream_error == 0.5);
  CHECK(losses[1].step == 8);
  CHECK(losses[2].step == 11);
  CHECK(expected_losses(results(), 0, 0, 2).size() == 2);
  CHECK(expected_losses(results(), 1, 1, 5).empty());
}

TEST_CASE("expected losses are named with their tokens, at the smallest budget", "[cli]") {
  CHECK(expected_loss_table(results(), kWords) ==
        "expected to lose most at budget 10% (step, its token, stream error)\n"
        "knorm  10 \"\\n\" 0.5, 8 \" the\" 0.25, 11 0.25\n");
  CHECK(expected_loss_table(results(), {}) ==
        "expected to lose most at budget 10% (step, stream error)\n"
        "knorm  10 0.5, 8 0.25, 11 0.25\n");
}

TEST_CASE("without stream error nothing is said of expected losses", "[cli]") {
  CHECK(expected_loss_table(Dataset(), kWords).empty());
  CHECK(expected_losses(Dataset(), 0, 0, 5).empty());
}

}  // namespace kvsim::cli
