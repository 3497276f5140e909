#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <thread>

#include "io/side_files.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/paths.hpp"
#include "tests/support/results.hpp"

using namespace kvsim;
using namespace kvsim::test;
namespace fs = std::filesystem;

namespace {

/// Merging, quantising, random and query-head records bring variables along that others lack.
constexpr const char* kSweep =
    "budgets = [0.25, 0.5, 8]\nseeds = [0, 5]\n"
    "[[policy]]\npreset = \"snapkv\"\nwindow = [2, 4]\nkernel = [3, 5]\n"
    "[[policy]]\npreset = \"snapkv:official\"\nwindow = 4\n"
    "[[policy]]\npreset = \"random\"\n"
    "[[policy]]\npreset = \"snapkv\"\nwindow = 4\nquantize = [\"per-token\", \"none\"]\n"
    "[[policy]]\npreset = \"defensivekv\"\nwindow = 4\n"
    "[[policy]]\npreset = [\"keepkv\", \"convex\"]\nwindow = 4\nmerge_threshold = [0.1, 0.8]\n"
    "[[policy]]\npreset = \"tova:official\"\n";

/// A small trace and a sweep over it, with the results of an undisturbed run.
class Sweep {
 public:
  Sweep() : trace(folder / "t.h5"), config(folder / "s.toml") {
    REQUIRE(run_kvsim("synth -o " + trace +
                      " --prompt 96 --steps 12 --head-dim 8 --value-dim 8 "
                      "--hidden 16 --heads 4 --kv-heads 2 --num-layers 3")
                .status == 0);
    write_bytes(config, std::string("traces = [\"") + trace + "\"]\n" + kSweep);
  }
  std::string line(const std::string& out, const std::string& more = "") const {
    return "sweep " + config + " -o " + (folder / out) + " " + more;
  }
  const TemporaryFolder folder;
  const std::string trace;
  const std::string config;
};

void check_same_files(const std::string& a, const std::string& b) {
  const Dataset x = read_results(a), y = read_results(b);
  REQUIRE(x.variables().size() == y.variables().size());
  for (size_t v = 0; v < x.variables().size(); ++v) check_same(x.variables()[v], y.variables()[v]);
}

/// Starts the program and ends it with `signal` when `wait` returns; true if it was still running.
bool interrupted(const std::string& arguments, int signal, const std::function<void()>& wait) {
  const pid_t child = fork();
  if (child == 0) {
    const std::string command = std::string("exec ") + kProgram + " " + arguments + " -q 2>&-";
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  wait();
  kill(child, signal);
  int status = 0;
  waitpid(child, &status, 0);
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

size_t finished_units(const std::string& folder) {
  std::error_code fault;
  const fs::directory_iterator files(folder + "/units", fault);
  return std::count_if(begin(files), end(files),
                       [](const auto& file) { return file.path().extension() == ".nc"; });
}

}  // namespace

TEST_CASE("a sweep killed at random moments ends with the same data", "[sweep]") {
  const Sweep sweep;
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(run_kvsim(sweep.line("whole")).status == 0);
  const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - begin);
  std::mt19937 random(std::random_device{}());
  size_t before = 0;
  for (int attempt = 0; attempt < 8; ++attempt) {
    std::uniform_int_distribution<int64_t> moment(0, whole.count());
    const int signal = attempt % 2 == 0 ? SIGKILL : SIGTERM;
    const std::chrono::microseconds after(moment(random));
    const auto wait = [&] { std::this_thread::sleep_for(after); };
    if (!interrupted(sweep.line("killed"), signal, wait)) break;
    const size_t now = finished_units(sweep.folder / "killed");
    CHECK(now >= before);  // what is finished stays
    before = now;
  }
  REQUIRE(run_kvsim(sweep.line("killed")).status == 0);
  for (const char* name : {"/t-seed0.nc", "/t-seed5.nc"}) {
    check_same_files((sweep.folder / "whole") + name, (sweep.folder / "killed") + name);
  }
}

TEST_CASE("a finished sweep does nothing and ends with 0; a changed one asks first", "[sweep]") {
  const Sweep sweep;
  REQUIRE(run_kvsim(sweep.line("out")).status == 0);
  const std::string target = (sweep.folder / "out") + "/t-seed0.nc";
  const auto written = fs::last_write_time(target);
  const Outcome again = run_kvsim(sweep.line("out"));
  CHECK(again.status == 0);
  CHECK_THAT(again.err, Catch::Contains("is there already"));
  CHECK(fs::last_write_time(target) == written);
  const Outcome plan = run_kvsim(sweep.line("out", "--plan"));
  CHECK(plan.status == 0);
  CHECK_THAT(plan.out, Catch::Contains("26 units") && Catch::Contains("26 of them done"));
  const auto document = nlohmann::json::parse(run_kvsim(sweep.line("out", "--plan --json")).out);
  CHECK(document["units"].size() == 26);
  CHECK(document["units"][0]["done"] == true);
  CHECK(document["files"][0] == target);
  write_bytes(sweep.config, "outlier = 0.3\n" + read_bytes(sweep.config));
  CHECK(run_kvsim(sweep.line("out")).status == 2);
  CHECK(run_kvsim(sweep.line("out", "--overwrite")).status == 0);
}

TEST_CASE("what a trace refuses is named with the line that asked for it", "[sweep]") {
  const Sweep sweep;
  const auto complaint = [&](const std::string& head) {
    write_bytes(sweep.config, head + kSweep);
    const Outcome finished = run_kvsim(sweep.line("out"));
    CHECK(finished.status == 3);
    return finished.err;
  };
  const std::string traces = "traces = [\"" + sweep.trace + "\",\n";
  CHECK_THAT(complaint(traces + "\"none.h5\"]\n"),
             Catch::Contains("s.toml:2: ") && Catch::Contains("none.h5: no such"));
  CHECK_THAT(complaint(traces + "]\nlayers = [1,\n7]\n"),
             Catch::Contains("s.toml:4: ") && Catch::Contains("layers with 7"));
}

TEST_CASE("shards joined are one run; missing, doubled and foreign parts are named", "[sweep]") {
  const Sweep sweep;
  REQUIRE(run_kvsim(sweep.line("whole")).status == 0);
  std::vector<std::string> parts;
  for (const char* shard : {"1", "2", "3"}) {
    const std::string share = std::string("--threads 1 --shard ") + shard + "/3";
    REQUIRE(run_kvsim(sweep.line("parts", share)).status == 0);
    const std::string part = (sweep.folder / "parts") + "/t-seed0.part-" + shard + "-of-3.nc";
    if (fs::exists(part)) parts.push_back(part);
  }
  REQUIRE(parts.size() >= 2);
  std::string all;
  for (const std::string& part : parts) all += part + " ";
  const std::string out = sweep.folder / "joined.nc";
  REQUIRE(run_kvsim("merge " + all + "-o " + out).status == 0);
  check_same_files((sweep.folder / "whole") + "/t-seed0.nc", out);

  const std::string to = " --overwrite -o " + out;
  const Outcome missing = run_kvsim("merge " + parts[0] + to);
  CHECK(missing.status == 3);
  CHECK_THAT(missing.err, Catch::Contains("policies are missing"));
  const Outcome doubled = run_kvsim("merge " + all + parts[0] + to);
  CHECK(doubled.status == 3);
  CHECK_THAT(doubled.err, Catch::Contains("a policy twice") && Catch::Contains(parts[0]));
  const std::string foreign = (sweep.folder / "whole") + "/t-seed5.nc";
  const Outcome other = run_kvsim("merge " + parts[0] + " " + foreign + to);
  CHECK(other.status == 3);
  CHECK_THAT(other.err, Catch::Contains("a part of another sweep") && Catch::Contains(foreign));
}

TEST_CASE("a full disk loses only what is in work and says so in one line", "[sweep]") {
  const Sweep sweep;
  REQUIRE(run_kvsim(sweep.line("whole")).status == 0);
  // Files may not grow past a limit: writing fails as on a full disk, early or late in a file.
  for (const char* kilobytes : {"1", "8", "40", "80"}) {
    const std::string errors = sweep.folder / "errors";
    const std::string command = "trap '' XFSZ; ulimit -f " + std::string(kilobytes) + "; " +
                                kProgram + " " + sweep.line("full", "-q") + " 2> " + errors;
    const int status = std::system(("bash -c \"" + command + "\"").c_str());
    INFO(kilobytes << " KiB: " << read_bytes(errors));
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 1);
    const std::string said = read_bytes(errors);
    CHECK(std::count(said.begin(), said.end(), '\n') == 1);
    CHECK_THAT(said, Catch::Contains("cannot"));
    CHECK(!fs::exists((sweep.folder / "full") + "/t-seed0.nc"));
  }
  REQUIRE(run_kvsim(sweep.line("full")).status == 0);
  check_same_files((sweep.folder / "whole") + "/t-seed0.nc",
                   (sweep.folder / "full") + "/t-seed0.nc");
}

TEST_CASE("settings are judged by stream error, unless --metric names other measures", "[sweep]") {
  const Sweep sweep;
  write_bytes(sweep.config, "traces = [\"" + sweep.trace +
                                "\"]\n"
                                "budgets = [0.25]\nlayers = [0, 2]\n[[policy]]\npreset = "
                                "\"snapkv\"\nwindow = [2, 4]\nkernel = [3, 5]\n");
  const Outcome usual = run_kvsim(sweep.line("out", "--csv " + (sweep.folder / "best.csv")));
  REQUIRE(usual.status == 0);
  const size_t stream = usual.out.find("snapkv, 4 settings: stream error, root mean square");
  REQUIRE(stream != std::string::npos);
  CHECK(stream < usual.out.find("snapkv, 4 settings: retained importance, mean"));
  CHECK_THAT(usual.out, Catch::Contains("stream error: of 2 of the model's 3 layers\n") &&
                            !Catch::Contains("output error"));
  const std::string csv = read_bytes(sweep.folder / "best.csv");  // has them all
  CHECK_THAT(csv, Catch::Contains("\nsnapkv,4,stream_error,rms,0.25,") &&
                      Catch::Contains("\nsnapkv,4,output_error,mean,0.25,"));
  const Dataset results = read_results(sweep.folder / "out/t.nc");
  const auto& policies = std::get<std::vector<std::string>>(results.at("policy").values);
  const auto errors = std::get<std::vector<double>>(results.at("stream_error_rms").values);
  const std::string& best = policies[std::ranges::min_element(errors) - errors.begin()];
  CHECK_THAT(csv, Catch::Contains("\nsnapkv,4,stream_error,rms,0.25,\"" + best + "\","));

  const Outcome other = run_kvsim(sweep.line("out", "--metric output_error,residual_error"));
  CHECK(other.status == 0);
  CHECK_THAT(other.out, Catch::Contains("settings: output error") &&
                            Catch::Contains("settings: residual error") &&
                            !Catch::Contains("stream") && !Catch::Contains("retained"));
  const Outcome json = run_kvsim(sweep.line("out", "--json --metric stream_error"));
  CHECK_THAT(json.out, Catch::Contains("\"rms\"") && !Catch::Contains("retained"));
  const Outcome unknown = run_kvsim(sweep.line("out", "--metric stream_eror"));
  CHECK(unknown.status == 2);
  CHECK_THAT(unknown.err, Catch::Contains("--metric: unknown metric: found stream_eror") &&
                              Catch::Contains("stream_error, retained_importance, output_error"));
}

TEST_CASE("a sweep of equal bytes holds what replay holds", "[sweep][equal-bytes]") {
  const Sweep sweep;
  const std::string head = std::string("traces = [\"") + sweep.trace + "\"]\n" +
                           "budgets = [0.3, 0.6]\nequal_bytes = ";
  const std::string records =
      "[[policy]]\npreset = \"adakv\"\nwindow = [2, 4]\n"
      "[[policy]]\npreset = \"snapkv\"\nwindow = 4\nquantize = \"per-token\"\n"
      "quant_residual = 0\n[[policy]]\npreset = \"full\"\n";
  write_bytes(sweep.config, head + "\"padded\"\n" + records);
  const Outcome run = run_kvsim(sweep.line("equal"));
  CHECK(run.status == 0);
  CHECK(run.err.find("t: full holds more than 0.3 of the full cache's bytes") != std::string::npos);
  REQUIRE(run_kvsim("replay " + sweep.trace + " -o " + (sweep.folder / "r.nc") +
                    " --policy adakv,window=2 --policy adakv,window=4 --policy "
                    "snapkv,window=4,quantize=per-token,quant_residual=0 --policy full "
                    "--budget 0.3,0.6 --equal-bytes padded")
              .status == 0);
  const Dataset swept = read_results(sweep.folder / "equal/t.nc"),
                replayed = read_results(sweep.folder / "r.nc");
  for (const char* name : {"budget_entries", "bytes_padded", "kept"})
    CHECK(std::get<std::vector<double>>(swept.at(name).values) ==
          std::get<std::vector<double>>(replayed.at(name).values));
  CHECK(std::get<std::string>(*swept.attribute("equal_bytes")) == "padded");
  write_bytes(sweep.config, head + "\"in pages\"\n" + records);
  const Outcome wrong = run_kvsim(sweep.line("wrong"));
  CHECK(wrong.status == 2);
  CHECK(wrong.err.find("expected one of flattened, padded, paged, in-place") != std::string::npos);
}

TEST_CASE("a setting that holds less is compared where it holds what the budget gives", "[sweep]") {
  const Sweep sweep;
  write_bytes(sweep.config, std::string("traces = [\"") + sweep.trace + "\"]\n" +
                                "budgets = [0.2, 0.4, 0.9]\n[[policy]]\npreset = \"snapkv\"\n"
                                "window = 4\n[[policy]]\npreset = \"snapkv\"\nwindow = 4\n"
                                "quantize = \"per-token\"\nquant_residual = 0\n");
  const Outcome run = run_kvsim(sweep.line("out", "--json"));
  REQUIRE(run.status == 0);
  const auto rows = nlohmann::json::parse(run.out).at("rows");
  const auto row = [&](const char* budget) {
    for (const auto& one : rows)
      if (one.at("measure") == "stream_error" && one.at("budget") == budget) return one;
    throw std::runtime_error("no such row");
  };
  const std::string rounded = "snapkv,window=4,quantize=per-token,quant_residual=0";
  const auto here = row("0.2");
  CHECK(here.at("best") == "snapkv,window=4");
  CHECK(here.at("off_budget") == 1);
  CHECK(here.at("equal_bytes") == rounded);
  const Dataset results = read_results(sweep.folder / "out/t.nc");
  const auto share = [&](int64_t b) { return results.row("held_share", {1, b})[0]; };
  const double given = results.row("budget_share", {1, 0})[0];
  REQUIRE(share(0) < given);
  const int64_t below = share(1) < given ? 1 : 0, above = below + 1;
  REQUIRE(share(above) > given);
  const double along = std::log(given / share(below)) / std::log(share(above) / share(below));
  const auto low = results.row("stream_error", {1, below}),
             high = results.row("stream_error", {1, above});
  double squares = 0;
  for (size_t t = 0; t < low.size(); ++t)
    squares += std::pow(std::pow(low[t], 1 - along) * std::pow(high[t], along), 2);
  const double value = std::sqrt(squares / static_cast<double>(low.size()));
  CHECK(here.at("equal_bytes_value").get<double>() == Approx(value));
  CHECK(here.at("equal_bytes_gain").get<double>() ==
        Approx(here.at("value").get<double>() - value).margin(1e-12));
  CHECK(row("0.9").at("equal_bytes") == "");  // it never holds so many
  const std::string told = run_kvsim(sweep.line("out")).out;
  CHECK_THAT(told,
             Catch::Contains("\n   equal  window=4,quantize=per-token,quant_residual=0") &&
                 Catch::Contains("not compared at equal bytes, as all their budgets hold more, "
                                 "or all less: 1 of snapkv at 0.9"));
}
