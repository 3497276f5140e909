#include <catch2/catch.hpp>

#include "run/sweep/sweep.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

std::vector<std::string> records_of(const std::string& policies) {
  const SweepConfig config = parse_sweep_config("budgets = [0.5]\n" + policies, "s.toml");
  std::vector<std::string> names;
  for (const Record& record : config.options.records) names.push_back(record.canonical());
  return names;
}

std::string complaint(const std::string& text) {
  const Thrown thrown = error_of([&] { parse_sweep_config(text, "s.toml"); });
  CHECK(thrown.fault == Fault::usage);
  return thrown.message;
}

}  // namespace

TEST_CASE("lists in a sweep file are axes and the last key varies fastest", "[sweep]") {
  CHECK(records_of("[[policy]]\npreset = \"restkv\"\nema_alpha = [0.1, 0.5]\n"
                   "aws_beta = [5, 20]\n") ==
        std::vector<std::string>{
            "restkv,ema_alpha=0.1,aws_beta=5", "restkv,ema_alpha=0.1,aws_beta=20",
            "restkv,ema_alpha=0.5,aws_beta=5", "restkv,ema_alpha=0.5,aws_beta=20"});
  CHECK(records_of("[[policy]]\nwindow = [8, 16]\npreset = [\"snapkv\", \"tova\"]\n") ==
        std::vector<std::string>{"snapkv,window=8", "tova,window=8", "snapkv,window=16",
                                 "tova,window=16"});
}

TEST_CASE("zip ties axes together", "[sweep]") {
  const std::string tied =
      "[[policy]]\npreset = \"snapkv\"\nwindow = [8, 16]\nsmooth = [\"avg\", \"max\"]\n"
      "kernel = [3, 7]\n";
  CHECK(records_of(tied + "zip = [\"window\", \"kernel\"]\n").size() == 4);
  CHECK(
      records_of(tied + "zip = [\"kernel\", \"smooth\", \"window\"]\n") ==
      std::vector<std::string>{"snapkv,window=8,kernel=3", "snapkv,window=16,smooth=max,kernel=7"});
  CHECK(records_of(tied + "zip = [[\"window\", \"kernel\"]]\n").size() == 4);
}

TEST_CASE("budgets keep what they are: 1.0 is a ratio and 1 a count", "[sweep]") {
  const SweepConfig config = parse_sweep_config(
      "budgets = [1.0, 1, \"20%\", 0.25]\nseeds = [3, 4]\n[[policy]]\npreset = \"snapkv\"\n", "s");
  REQUIRE(config.options.budgets.size() == 4);
  CHECK(config.options.budgets[0].is_ratio);
  CHECK(!config.options.budgets[1].is_ratio);
  CHECK(config.options.budgets[2].ratio(100) == 0.2);
  CHECK(config.options.budgets[3].label == "0.25");
  CHECK(config.seeds == std::vector<uint64_t>{3, 4});
}

TEST_CASE("mistakes in a sweep file are named with their line", "[sweep]") {
  const std::string head = "budgets = [0.5]\n[[policy]]\npreset = \"snapkv\"\n";
  using Catch::Contains;
  CHECK_THAT(complaint("budgets = [0.5\n[[policy]"), Contains("s.toml:2: not TOML"));
  CHECK_THAT(complaint("budget = [0.5]\n"),
             Contains("s.toml:1: unknown key") && Contains("budgets"));
  CHECK_THAT(complaint("base = \"snapkv\"\n"), Contains("kvsim search runs the file of a search"));
  CHECK_THAT(complaint("\x89HDF\r\n"), Contains("s.toml: not the file of a sweep"));
  CHECK_THAT(complaint("traces = []\n"), Contains("s.toml:1: an empty list"));
  CHECK_THAT(complaint("budgets = [0.5, 2.5]\n"), Contains("s.toml:1") && Contains("2.5"));
  CHECK_THAT(complaint("seeds = [-1]\n"), Contains("s.toml:1: not a whole number"));
  CHECK_THAT(complaint(head + "windw = 8\n"),
             Contains("s.toml:4: unknown key") && Contains("window"));
  CHECK_THAT(complaint(head + "window = [8,\n  0]\n"),
             Contains("s.toml:5") && Contains("window=0"));
  CHECK_THAT(complaint(head + "ema_alpha = 0.5\n"), Contains("s.toml:2") && Contains("ema_alpha"));
  CHECK_THAT(complaint("budgets = [1]\n[[policy]]\nwindow = 8\n"), Contains("s.toml:2: no preset"));
  CHECK_THAT(complaint("budgets = [1]\n[[policy]]\npreset = \"snapvk\"\n"),
             Contains("s.toml:3") && Contains("snapkv"));
  CHECK_THAT(complaint(head + "window = [1, 2]\nkernel = [3]\nzip = [\"window\", \"kernel\"]\n"),
             Contains("s.toml:6: zip ties lists of different lengths"));
  CHECK_THAT(complaint(head + "zip = [\"window\"]\n"), Contains("s.toml:4: zip names"));
  CHECK_THAT(complaint("budgets = [0.5]\n"), Contains("s.toml: no [[policy]]"));
  CHECK_THAT(complaint("[[policy]]\npreset = \"snapkv\"\n"), Contains("s.toml: no budgets"));
}
