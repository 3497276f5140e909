#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;
using nlohmann::json;

TEST_CASE("a bad trace ends with status 3 and one line on standard error", "[cli]") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.h5";
  const auto refused = [&](const std::string& arguments, const std::string& message) {
    const Outcome outcome = run_kvsim(arguments);
    CHECK(outcome.status == 3);
    CHECK(outcome.out.empty());
    CHECK(outcome.err == "kvsim: " + message + "\n");
  };
  refused("inspect " + path, path + ": no such file");
  write_small_trace(path);
  Editor(path).integer("/", "version", 7);
  refused("inspect " + path,
          path + ": attribute version: version from the future: found 7, expected 1");
  refused("verify " + path,
          path + ": attribute version: version from the future: found 7, expected 1");
  write_small_trace(path);
  refused("verify " + path + " --layers 1", path +
                                                ": the trace does not have the layer asked for: "
                                                "found --layers with 1, expected layers among 0,2");
  Editor(path).remove("check");
  refused("verify " + path, path + ": no recorded outputs to verify: expected check/query_position "
                                   "and check_output in a layer");
}

TEST_CASE("a compressed trace reads with one warning", "[cli]") {
  const SmallTrace trace;
  const std::string& path = trace.path;
  {
    Editor editor(path);
    editor.store_again("layers/0/k", {.chunk = {1, 16, 8}, .gzip = 4});
    editor.store_again("layers/2/k", {.chunk = {1, 16, 8}, .gzip = 4});
  }
  const Outcome outcome = run_kvsim("verify " + path);
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.err, Catch::StartsWith("kvsim: " + path + ": layers/0/k is compressed"));
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(run_kvsim("verify -q " + path).err.empty());
}

TEST_CASE("inspect tells shapes, positions and what the trace is enough for", "[cli]") {
  const SmallTrace trace(ElementType::bfloat16);
  const std::string& path = trace.path;
  const Outcome text = run_kvsim("inspect " + path);
  CHECK(text.status == 0);
  CHECK_THAT(text.out, Catch::Contains("4 query heads, 2 KV heads") && Catch::Contains("bfloat16"));
  CHECK_THAT(text.out, Catch::Contains("not compressed, not measured"));  // layer 2's window is 7
  const json document = json::parse(run_kvsim("inspect --json " + path).out);
  CHECK(document["prompt_len"] == 10);
  CHECK(document["layers"][1]["softcap"] == 5.0);
  CHECK(document["spans"][0]["name"] == "defense");
  CHECK(document["query_runs"] == json::parse("[[0, 16]]"));
  size_t of_probes = 0;  // the file has none
  for (const json& use : document["uses"]) {
    if (use["served"] == true) continue;
    CHECK_THAT(use.dump(), Catch::Contains("needs a probe "));
    ++of_probes;
  }
  CHECK(of_probes > 0);
}

TEST_CASE("inspect says what a trace with few queries lacks", "[cli]") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.h5";
  REQUIRE(run_kvsim("synth -o " + path + " --prompt 50 --steps 0 --queries window:4 --spans none")
              .status == 0);
  const json document = json::parse(run_kvsim("inspect --json " + path).out);
  std::map<std::string, json> uses;
  for (const json& use : document["uses"]) uses[use["name"]] = use;
  CHECK(uses["metrics over later steps, oracles"]["served"] == false);
  CHECK(uses["queries=window"]["detail"] == "window up to 4");
  CHECK(uses["score_estimate"]["detail"] == "window up to 3");
  CHECK(uses["schedule=periodic"]["served"] == false);
  CHECK(uses["keep rates and bias"]["served"] == false);
}

TEST_CASE("verify finds outputs that do not belong to the tensors, with status 4", "[cli]") {
  const SmallTrace trace;
  const std::string& path = trace.path;
  CHECK(run_kvsim("verify " + path).status == 0);
  Editor(path).set_float("layers/2/check_output", 7, 9);
  const Outcome outcome = run_kvsim("verify " + path);
  CHECK(outcome.status == 4);
  CHECK_THAT(outcome.err, Catch::Contains("1 of 2 layers differ by more than 0.0001"));
  CHECK_THAT(outcome.out, Catch::Contains("FAILED"));
  CHECK(run_kvsim("verify --layers 0 " + path).status == 0);
  CHECK(run_kvsim("verify --tolerance 1000 " + path).status == 0);
  const json document = json::parse(run_kvsim("verify --json " + path).out);
  CHECK(document["layers"][0]["passed"] == true);
  CHECK(document["layers"][1]["passed"] == false);
}

TEST_CASE("verify refuses recorded outputs whose query is not stored", "[cli]") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.h5";
  REQUIRE(run_kvsim("synth -o " + path + " --prompt 40 --steps 8 --queries window:0").status == 0);
  const std::vector<int64_t> positions = {1, 2, 3, 4, 5, 6, 7, 8};
  Editor(path).integers("check/query_position", positions);
  const Outcome outcome = run_kvsim("verify " + path);
  CHECK(outcome.status == 3);
  CHECK_THAT(outcome.err, Catch::Contains("no query is stored where an output is recorded"));
}

TEST_CASE("synth refuses what exists, and what makes no sense, before it writes", "[cli]") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.h5";
  write_bytes(path, "precious");
  const auto status = [&](const std::string& arguments) {
    return run_kvsim("synth -o " + path + " " + arguments).status;
  };
  CHECK(status("") == 2);
  CHECK(read_bytes(path) == "precious");
  std::filesystem::remove(path);
  for (const char* bad :
       {"--heads 3 --kv-heads 2", "--dtype float64", "--queries last", "--head-dim 2",
        "--spans a:5", "--spans a:0-5,a:6-7", "--spans b:5-9,a:0-5", "--spans x+y:0-5",
        "--prompt 0", "--spans a:0-2000", "--seed -1", "--softcap 0"}) {
    INFO(bad);
    CHECK(status(bad) == 2);
  }
  CHECK_FALSE(std::filesystem::exists(path));
}
