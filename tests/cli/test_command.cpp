#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {
void require_usage(const std::string& arguments, const std::string& message) {
  INFO(arguments);
  const Outcome outcome = run_kvsim(arguments);
  check_refused(outcome, 2, message);
  CHECK(outcome.out.empty());
  CHECK_THAT(outcome.err, Catch::StartsWith("kvsim: "));
}
}  // namespace

TEST_CASE("usage errors are one line that helps, with status 2", "[cli]") {
  require_usage("inspct x", "unknown command: found inspct (did you mean inspect?)");
  require_usage("--fast", "unknown option: found --fast");
  require_usage("inspect", "inspect: missing FILE: expected kvsim inspect FILE [options]");
  require_usage("inspect a b", "too many arguments");
  require_usage("inspect a --jsom", "unknown option: found --jsom (did you mean --json?)");
  require_usage("inspect a --js", "unknown option");  // no abbreviations: they break later
  require_usage("inspect a --threads 0", "--threads: out of range");
  require_usage("inspect a --threads", "--threads");
  require_usage("inspect a -q -v", "exclude each other");
  require_usage("verify a --layers 1 --layers 2", "more than once");
  require_usage("synth", "missing -o");
}

TEST_CASE("without a command the help goes to standard error, with --help to standard output",
          "[cli]") {
  const Outcome none = run_kvsim("");
  CHECK(none.status == 2);
  CHECK_THAT(none.err, Catch::Contains("Usage: kvsim COMMAND"));
  const Outcome help = run_kvsim("--help");
  CHECK(help.status == 0);
  CHECK_THAT(help.out, Catch::Contains("inspect") && Catch::Contains("verify"));
  CHECK(help.err.empty());
  CHECK_THAT(run_kvsim("--version").out, Catch::StartsWith("kvsim "));
  CHECK(run_kvsim("help inspect").out == run_kvsim("inspect --help").out);
  CHECK(run_kvsim("help").out == help.out);
  require_usage("help inspct", "unknown command: found inspct (did you mean inspect?)");
}

TEST_CASE("the help of every command ends with two examples of that command", "[cli]") {
  for (const cli::Command& command : cli::commands()) {
    INFO(command.name);
    CHECK(command.examples.size() == 2);
    for (const std::string& example : command.examples)
      CHECK_THAT(example, Catch::StartsWith("kvsim " + command.name + " "));
    const Outcome help = run_kvsim(command.name + " --help");
    CHECK(help.status == 0);
    CHECK_THAT(help.out, Catch::StartsWith("Usage: kvsim " + command.name));
    CHECK_THAT(help.out, Catch::EndsWith(command.examples.back() + "\n"));
  }
}

TEST_CASE("results that cannot be written are a failure", "[cli]") {
  if (!std::filesystem::exists("/dev/full")) return;
  const SmallTrace file;
  const Outcome outcome = run_kvsim("inspect " + file.path + " >/dev/full 2>" +
                                    (file.folder / "err") + "; echo $?");
  CHECK(outcome.out == "1\n");
  CHECK_THAT(read_bytes(file.folder / "err"),
             Catch::Contains("standard output: cannot be written"));
}

TEST_CASE("no text from a file or an argument can drive the terminal", "[cli]") {
  CHECK(cli::printable("a\x1b[31mb\n") == "a\\x1b[31mb\\x0a");
  const Outcome outcome = run_kvsim("inspect \"$(printf 'x\\033[2Jy')\"");
  CHECK(outcome.status == 3);
  CHECK(outcome.err.find('\x1b') == std::string::npos);
}

TEST_CASE("policies tells how open places of a paper are read, for what the record uses", "[cli]") {
  const std::string restkv = run_kvsim("policies restkv").out;
  CHECK_THAT(restkv, Catch::Contains("smooth=aws (ReST-KV Eq. 12)"));
  CHECK_THAT(restkv, Catch::Contains("indicator=output-change (ReST-KV Eq. 7)"));
  CHECK_THAT(restkv, !Catch::Contains("KeepKV"));
  const std::string plain = run_kvsim("policies restkv,smooth=avg").out;
  CHECK_THAT(plain, !Catch::Contains("Eq. 12"));
  const std::string keepkv = run_kvsim("policies keepkv").out;
  CHECK_THAT(keepkv, Catch::Contains("score_estimate=ema (KeepKV Eq. 8)"));
  CHECK_THAT(keepkv, Catch::Contains("keepkv (KeepKV 3.3 and Algorithm 1)"));
  CHECK_THAT(run_kvsim("policies stage1_bias").out, Catch::Contains("notes"));
  CHECK_THAT(run_kvsim("policies smooth=mean").err, Catch::Contains("did you mean avg?"));
  const auto json = nlohmann::json::parse(run_kvsim("policies restkv --json").out);
  CHECK(json["preset"]["notes"].size() >= 6);
}
