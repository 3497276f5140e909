#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/side_files.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/results.hpp"

using namespace kvsim;
using namespace kvsim::test;
using nlohmann::json;

namespace {

const std::string kSmall = " --policy snapkv,window=8 --policy streaming --budget 0.2,30 ";

}  // namespace

TEST_CASE("replay writes results, prints a table and says where the file is", "[cli][replay]") {
  const Synthesized made;
  const Outcome outcome = made.replay(kSmall);
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.out, Catch::Contains("snapkv,window=8"));
  CHECK_THAT(outcome.err, Catch::Contains(made.results + " written"));
  CHECK(outcome.out.find('\033') == std::string::npos);
  const Dataset results = read_results(made.results);
  CHECK(results.size("policy") == 2);
  CHECK(std::get<std::vector<double>>(results.at("budget").values) ==
        std::vector<double>{0.2, 0.5});
  CHECK(std::get<std::vector<std::string>>(results.at("budget_label").values) ==
        std::vector<std::string>{"0.2", "30"});
  CHECK(results.row("kept", {0, 0, 0, 0})[0] == 12);
  CHECK(results.row("entries_kv", {1, 1})[0] == 2 * 2 * 30);
  CHECK(results.has("residual_error"));  // synthetic traces have residual norms
  CHECK_FALSE(results.has("retained_importance_head"));
  for (const char* name : {"Conventions", "title", "history", "kvsim_version", "git_commit",
                           "build", "trace", "trace_digest", "model", "prompt_len", "total_len",
                           "seed", "threads", "backend", "device", "config", "open_loop_note"}) {
    INFO(name);
    CHECK(results.attribute(name) != nullptr);
  }
  const json config = json::parse(std::get<std::string>(*results.attribute("config")));
  CHECK(config["policies"][0]["record"] == "snapkv,window=8");
  CHECK(config["policies"][0]["parameters"]["window"] == "8");
  CHECK(config["policies"][0]["parameters"]["kernel"] == "5");
}

TEST_CASE("results are the same bytes with one thread and with several", "[cli][replay]") {
  const Synthesized made;
  const auto values = [&](const std::string& threads) {
    const std::string out = made.folder / ("r" + threads + ".nc");
    REQUIRE(run_kvsim("replay -q " + made.trace + kSmall + "--per-head --save-keep --threads " +
                      threads + " -o " + out)
                .status == 0);
    return read_results(out);
  };
  const Dataset one = values("1");
  for (const char* threads : {"2", "8"}) {
    const Dataset several = values(threads);
    for (const Variable& variable : one.variables())
      check_same(variable, several.at(variable.name));
  }
}

TEST_CASE("requested metrics add variables and take none away", "[cli][replay]") {
  const Synthesized made;
  REQUIRE(run_kvsim("replay -q " + made.trace + kSmall + "-o " + (made.folder / "a.nc")).status ==
          0);
  REQUIRE(run_kvsim("replay -q " + made.trace + kSmall +
                    "--metric output_error_absolute,importance_cosine,importance_pearson "
                    "--metric regret_mean,regret_step,minmax_bound --save-keep --per-head "
                    "--span-complement defense -o " +
                    (made.folder / "b.nc"))
              .status == 0);
  const Dataset plain = read_results(made.folder / "a.nc");
  const Dataset rich = read_results(made.folder / "b.nc");
  for (const Variable& variable : plain.variables()) CHECK(rich.has(variable.name));
  for (const char* name :
       {"output_error_absolute", "importance_cosine", "importance_pearson", "regret_mean",
        "regret_step", "minmax_bound", "kept_mask", "retained_importance_head", "keep_rate_head"}) {
    INFO(name);
    CHECK_FALSE(plain.has(name));
    CHECK(rich.has(name));
  }
  CHECK(rich.size("policy") == 2);  // the oracles of regret are not reported
  CHECK(rich.size("span") == plain.size("span") + 1);
  for (int64_t p = 0; p < 2; ++p) {
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t l = 0; l < 2; ++l) {
        CHECK(rich.row("regret_mean", {p, b, l})[0] >= 0);
        const auto step = rich.row("regret_step", {p, b, l});
        CHECK(*std::min_element(step.begin(), step.end()) >= -1e-6);
        CHECK(rich.row("retained_importance_min", {p, b, l})[0] <=
              rich.row("minmax_bound", {p, b, l})[0] + 1e-6);
      }
    }
  }
}

TEST_CASE("without --policy every default preset runs that the trace can serve", "[cli][replay]") {
  const Synthesized made("--queries window:40");
  const Outcome outcome = made.replay("--budget 0.5");
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.err, Catch::Contains("h2o, rehearsal:recent, rehearsal:reread left out: "));
  CHECK_THAT(outcome.err, Catch::Contains("kvzip left out: ") && Catch::Contains("--probe repeat"));
  const Dataset results = read_results(made.results);
  const auto& policies = std::get<std::vector<std::string>>(results.at("policy").values);
  CHECK(std::find(policies.begin(), policies.end(), "snapkv") != policies.end());
  CHECK(std::find(policies.begin(), policies.end(), "h2o") == policies.end());
  CHECK(run_kvsim("replay " + made.trace + " --policy h2o -o " + (made.folder / "x.nc")).status ==
        3);
}

TEST_CASE("bad requests end with status 2, one line and no file", "[cli][replay]") {
  const Synthesized made;
  const std::string arguments = GENERATE(
      std::string("--policy snapvk"), std::string("--policy snapkv,windw=3"),
      std::string("--budget 0"), std::string("--budget 1.5"), std::string("--metric regrett"),
      std::string("--scope half"), std::string("--importance l3"), std::string("--outlier x"),
      std::string("--wo-steps -1"), std::string("--backend tpu"), std::string("--peak 1e12"));
  const Outcome outcome = made.replay(arguments);
  INFO(arguments);
  check_refused(outcome, 2, "");
  CHECK_FALSE(std::filesystem::exists(made.results));
}

TEST_CASE("bad data ends with status 3 before any work", "[cli][replay]") {
  const Synthesized made;
  CHECK(run_kvsim("replay " + (made.folder / "none.h5") + " -o " + made.results).status == 3);
  CHECK(made.replay("--layers 7").status == 3);
  const Outcome span = made.replay(kSmall + "--span-complement defens");
  CHECK(span.status == 3);
  CHECK_THAT(span.err, Catch::Contains("defense"));
  CHECK_FALSE(std::filesystem::exists(made.results));
}

TEST_CASE("an existing target is refused before any work unless it may be replaced",
          "[cli][replay]") {
  const Synthesized made;
  write_bytes(made.results, "precious");
  CHECK(made.replay(kSmall).status == 2);
  CHECK(read_bytes(made.results) == "precious");
  CHECK(run_kvsim("replay " + made.trace + kSmall + "-o " + made.trace + " --overwrite").status ==
        2);
  CHECK(made.replay(kSmall + "--overwrite").status == 0);
  CHECK(made.replay(kSmall + "--overwrite --csv " + made.results).status == 2);
}

TEST_CASE("several traces give a results file each, named after them", "[cli][replay]") {
  const TemporaryFolder folder;
  const Synthesized first, second("--seed 1");
  const std::string a = folder / "a.h5", b = folder / "b.h5";
  std::filesystem::copy_file(first.trace, a);
  std::filesystem::copy_file(second.trace, b);
  const std::string out = folder / "results";
  const Outcome outcome = run_kvsim("replay " + a + " " + b + kSmall + "-o " + out + " --csv " +
                                    (folder / "t.csv"));
  CHECK(outcome.status == 0);
  CHECK(std::filesystem::exists(out + "/a.nc"));
  CHECK(std::filesystem::exists(out + "/b.nc"));
  CHECK_THAT(read_bytes(folder / "t.csv"), Catch::Contains(",span,trace\n"));
  CHECK(run_kvsim("replay " + a + " " + a + kSmall + "-o " + (folder / "twice")).status == 2);
}

TEST_CASE("a folder stands for the traces in it, by name", "[cli][replay]") {
  const TemporaryFolder folder;
  const Synthesized made;
  for (const char* name : {"b.h5", "a.h5", "README.md"})
    std::filesystem::copy_file(made.trace, folder / name);
  const std::string out = folder / "results";
  CHECK(run_kvsim("replay " + (folder / "") + kSmall + "-q -o " + out).status == 0);
  CHECK(std::filesystem::exists(out + "/a.nc"));
  CHECK(std::filesystem::exists(out + "/b.nc"));
  const Outcome none = run_kvsim("replay " + out + kSmall);
  CHECK(none.status == 2);
  CHECK_THAT(none.err, Catch::Contains("no trace in the folder"));
}

TEST_CASE("--json prints rows and nothing else on standard output", "[cli][replay]") {
  const Synthesized made;
  const Outcome outcome = made.replay(kSmall + "--json");
  CHECK(outcome.status == 0);
  const json rows = json::parse(outcome.out);
  CHECK(rows.size() > 50);
  CHECK(rows[0].contains("metric"));
}

TEST_CASE("layers with a short sliding window are left alone and named", "[cli][replay]") {
  const TemporaryFolder folder;
  const std::string trace = folder / "t.h5";
  write_small_trace(trace);  // layer 2 has a window of 7
  const std::string out = folder / "r.nc";
  const Outcome outcome = run_kvsim("replay " + trace + " --policy streaming -o " + out);
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.err, Catch::Contains("shorter than the trace: 2\n"));
  CHECK(read_results(out).size("layer") == 1);
  CHECK(run_kvsim("replay " + trace + " --policy streaming --layers 2 -o " + (folder / "x.nc"))
            .status == 3);
}

TEST_CASE("commands of the package: without Python one line says what sets it up", "[cli][plot]") {
  setenv("KVSIM_PYTHON", "/no/such/python", 1);
  const Outcome without = run_kvsim("plot r.nc -o figs");
  unsetenv("KVSIM_PYTHON");
  CHECK(without.status == 1);
  CHECK_THAT(without.err,
             Catch::Contains("plot: no Python to run") && Catch::Contains("scripts/quickstart.sh"));
  CHECK_THAT(run_kvsim("--help").out, Catch::Contains("draw the figures of results files"));
  CHECK_THAT(run_kvsim("plto").err, Catch::Contains("did you mean plot?"));
}
