#pragma once
#include "cli/command.hpp"
#include "sim/policy/record.hpp"

/// Files that came with the program: the Python package, the sample, prompts, sweeps and searches.
namespace kvsim::cli {

/// A file by its name in the source tree, of the nearest that has it: the wheel or clone of the
/// program, what was installed with it, the tree that it was built from. Empty where none has it.
std::filesystem::path shipped_file(const std::string& name);

/// `path` as it is where it exists or does not begin with data/; else the file of that name that
/// came with the program, if there is one.
std::string shipped(const std::string& path);

// The Python package, which lies beside the program: commands that are not the program's own, and
// functions in the place of presets.

/// Its commands with their summaries: those of python/kvsim/commands.json; none without the
/// package.
std::map<std::string, std::string> package_commands();

/// This process becomes `python -m kvsim WORDS` with the Python of KVSIM_PYTHON; else with the
/// first there is of that of scripts/quickstart.sh and python3, `users` the other way round. The
/// package looks further for one that has what the command needs. Returns only by throwing.
[[noreturn]] void hand_over(std::vector<std::string> words, bool users = false);

/// Where a record names a function, `python:FILE.py:FUNCTION`: makes its scores known, which lie in
/// the folder of --scores. Without that this process becomes the package, which computes them on
/// `layers` (empty: all) of the traces, into `folder` if one is given, and runs the command again,
/// as it was `typed`.
void serve_functions(const Values& values, const std::vector<std::string>& typed,
                     const std::vector<Record>& records, const std::vector<std::string>& traces,
                     const std::vector<int>& layers, const std::string& folder = "");

}  // namespace kvsim::cli
