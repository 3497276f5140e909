#include <catch2/catch.hpp>

#include "io/side_files.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;
using Catch::Contains;

namespace {

/// A small trace whose stored queries begin at position 52 of 60, and results of it.
struct Joints : Synthesized {
  Joints() : Synthesized("--queries window:8") {}
};

}  // namespace

TEST_CASE("missing queries name the cure", "[cli][messages]") {
  const Joints joints;
  check_refused(joints.replay("--policy h2o --budget 0.5"), 3, "--queries all");
  check_refused(joints.replay("--policy snapkv,window=16 --budget 0.5"), 3, "--queries window:16");
}

TEST_CASE("a folder as -o, results as a trace and a trace as results are named",
          "[cli][messages]") {
  const Joints joints;
  check_refused(run_kvsim("replay " + joints.trace + " -o " + joints.folder.path()), 2,
                "a folder stands where a file is to be written");
  REQUIRE(joints.replay("--policy snapkv,window=8 --budget 0.5").status == 0);
  check_refused(run_kvsim("replay " + joints.results + " -o " + (joints.folder / "x.nc")), 3,
                "results of kvsim stand where a trace is expected");
  check_refused(run_kvsim("explain " + joints.trace), 3,
                "a trace stands where results are expected");
}

TEST_CASE("settings without effect are named, in the file, too", "[cli][messages]") {
  const Joints joints;
  const Outcome said = joints.replay(
      "--policy snapkv,window=8,quantize=per-token,quant_bits=4 --policy streaming "
      "--policy snapkv,window=8,quantize=per-token,quant_bits=4,quant_residual=0 "
      "--budget 0.5 --budget 1000");
  REQUIRE(said.status == 0);
  CHECK_THAT(said.out, Contains("without effect\n"));
  CHECK_THAT(said.out, Contains("streaming at 1000: nothing is evicted"));
  const Dataset results = read_results(joints.results);
  const auto* attribute = results.attribute("without_effect");
  REQUIRE(attribute != nullptr);
  const std::string lines = std::get<std::string>(*attribute);
  CHECK_THAT(lines, Contains("quantize=per-token rounds no entry"));
  CHECK(lines.find("quant_residual=0 at 0.5") == std::string::npos);
  CHECK(joints.replay("--policy streaming --budget 0.5 --overwrite").out.find("without effect") ==
        std::string::npos);
}

TEST_CASE("a merge that merges nothing is named", "[cli][messages]") {
  const Joints joints;
  const Outcome said = joints.replay(
      "--policy snapkv,window=8,merge=convex,merge_threshold=1 "
      "--policy snapkv,window=8,merge=convex,merge_threshold=-1 --policy cam --budget 0.5,1000");
  REQUIRE(said.status == 0);
  CHECK_THAT(said.out, Contains("merge_threshold=1 at 0.5: merge=convex merges nothing"));
  CHECK(said.out.find("merge_threshold=-1 at 0.5: merge") == std::string::npos);
  CHECK(said.out.find("cam at 0.5") == std::string::npos);
}

TEST_CASE("a window that takes the whole budget is named", "[cli][messages]") {
  const Joints joints;  // 60 entries
  const Outcome said = joints.replay(
      "--policy snapkv,window=8 --policy adakv,window=8 --policy pyramidkv,window=8 "
      "--policy streaming --budget 5,8,9");
  REQUIRE(said.status == 0);
  for (const std::string policy : {"snapkv", "adakv", "pyramidkv"})
    CHECK_THAT(said.out, Contains(policy + ",window=8 at 5, 8: no score chooses, the window"));
  CHECK(said.out.find("streaming at", said.out.find("without effect")) == std::string::npos);
}

TEST_CASE("layers of skip_layers that are not there are named", "[cli][messages]") {
  const Joints joints;  // two layers
  const Outcome said = joints.replay(
      "--policy knorm,skip_layers=1+7+-3 --policy knorm,skip_layers=-2 --budget 0.5,20");
  REQUIRE(said.status == 0);
  CHECK_THAT(said.out, Contains("knorm,skip_layers=1+7+-3 at 0.5, 20: skip_layers=7+-3, the model "
                                "has layers 0 to 1\n"));
  CHECK(said.out.find("skip_layers=-2 at", said.out.find("without effect")) == std::string::npos);
}

TEST_CASE("traces of a sweep's file are looked up from its folder", "[cli][messages][sweep]") {
  const Joints joints;
  write_bytes(joints.folder / "s.toml",
              "traces = [\"t.h5\"]\nbudgets = [0.5]\n[[policy]]\npreset = \"streaming\"\n");
  const Outcome plan = run_kvsim("sweep " + (joints.folder / "s.toml") + " --plan -o " +
                                 (joints.folder / "out"));
  INFO(plan.err);
  CHECK(plan.status == 0);
}

TEST_CASE("first entries that take the whole budget are named, and a budget of none",
          "[cli][messages]") {
  const Joints joints;
  const Outcome said = joints.replay(
      "--policy snapkv,window=8,sinks=50 --policy snapkv,window=4,sinks=3 --budget 0.001,7,9");
  REQUIRE(said.status == 0);
  CHECK_THAT(said.out, Contains("sinks=50,window=8 at 9: no score chooses, the first entries") ||
                           Contains("window=8,sinks=50 at 9: no score chooses, the first entries"));
  CHECK_THAT(said.out, Contains("at 7: no score chooses, the window and the first entries"));
  CHECK_THAT(said.out, Contains("at 0.001: no entry of the prompt is kept"));
}

TEST_CASE("a whitelist behind the prompt is refused", "[cli][messages]") {
  const Joints joints;
  check_refused(joints.replay("--policy snapkv,window=8,whitelist=60-70 --budget 0.5"), 3,
                "span 60-70: a range behind the prompt: expected entries 0 to 59");
  CHECK(joints.replay("--policy snapkv,window=8,whitelist=55-70 --budget 0.5").status == 0);
}

TEST_CASE("an option does not take the next one for its value", "[cli][messages]") {
  const Joints joints;
  for (const std::string words : {"-o --overwrite", "--layers --json", "--policy --budget=0.2"})
    check_refused(run_kvsim("replay " + joints.trace + " --budget 0.5 " + words), 2,
                  "its value is missing: found -");
  check_refused(run_kvsim("replay " + joints.trace + " --budget 0.5 -o ''"), 2,
                "--out: its value is empty");
  check_refused(joints.replay("--policy random --budget 0.5 --bandwidth 0 --peak 1"), 2,
                "--bandwidth: out of range: found \"0\", expected a number above 0");
}

TEST_CASE("a trace of a name that is not UTF-8 has results that can be read", "[cli][messages]") {
  const Joints joints;
  const std::string trace = joints.folder / "bad\xff.h5";
  write_bytes(trace, read_bytes(joints.trace));
  REQUIRE(run_kvsim("replay '" + trace + "' --policy random --budget 0.5 -o " + joints.results)
              .status == 0);
  CHECK(std::get<std::string>(*read_results(joints.results).attribute("history"))
            .find("bad\xEF\xBF\xBD.h5") != std::string::npos);
}
