#include <cstdlib>

#include "cli/command.hpp"
#include "cli/python.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli::search_command {
namespace {

/// Options that are handed to the Python package as they are.
constexpr const char* kPassedOn[] = {"trials", "model", "threads"};
constexpr const char* kFlags[] = {"report", "closed-loop", "quiet"};

void describe(po::options_description& options) {
  options.add_options()("out,o", one("STUDY"), "folder of the study, made when absent")(
      "trials", one("N"), "how many candidates in all, instead of the file's number")(
      "report", "measure the best on the texts set aside, which are opened by this, once")(
      "closed-loop", "with --report: also run the model itself with what is kept; needs PyTorch")(
      "model", one("NAME|FOLDER"),
      "of --closed-loop and of searches by the closed loop (default: that of the traces)");
}

int run(const Values& values) {
  const std::string usage = "kvsim search SEARCH.toml -o STUDY";
  if (!has(values, "out"))
    usage_error({.what = "missing -o", .where = "search", .expected = usage});
  if (has(values, "closed-loop") && !has(values, "report"))
    usage_error({.what = "--closed-loop without --report",
                 .where = "search",
                 .expected = usage + " --report --closed-loop"});
  std::vector<std::string> words = {
      find_python({"optuna", "xarray", "h5netcdf", "matplotlib"}, "search"),
      find_module("searches/__main__.py", "search"), "--out=" + text(values, "out")};
  for (const char* option : kPassedOn)
    if (has(values, option))
      words.push_back(std::string("--") + option + "=" + text(values, option));
  for (const char* flag : kFlags)
    if (has(values, flag)) words.push_back(std::string("--") + flag);
  words.emplace_back("--");
  words.push_back(text(values, "config"));
  setenv("KVSIM_BIN", this_program().c_str(), 1);  // candidates are replayed by this very program
  become(std::move(words));
}

const bool registered = register_command(
    {.name = "search",
     .summary = "look for a better policy: candidates from a space of records, by Optuna",
     .arguments = {{.name = "config", .meaning = "the search: a TOML file"}},
     .description =
         "Asks for candidates in groups, replays each group at once over the texts to search on,\n"
         "and keeps everything in the folder STUDY: run again after a stop it goes on, and "
         "several\n"
         "processes may work on one study. --report measures the best on texts set aside, which\n"
         "must differ in kind, seed and length, and says how many candidates were tried. Python "
         "is\n"
         "that of KVSIM_PYTHON, of scripts/quickstart.sh, or python3 (docs/cli.md 7).",
     .describe = describe,
     .examples = {"kvsim search data/searches/sample.toml -o study",
                  "kvsim search data/searches/sample.toml -o study --trials 64"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::search_command
