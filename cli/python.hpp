#pragma once
#include <functional>
#include <string>
#include <vector>

/// What commands that hand over to a Python script share.
namespace kvsim::cli {

/// A file of the Python package, e.g. "plots/draw.py": of KVSIM_HOME, beside the program or one
/// folder up, or of the source tree, where the package is python/kvsim/ or the place itself.
/// `command` is named in errors.
std::string find_module(const std::string& name, const char* command);

/// `path` as it is where it exists or does not begin with data/; else the file of that name that
/// came with the program, if there is one: the sample, prompts, sweeps and searches.
std::string shipped(const std::string& path);

/// Path of the running program; empty where the system does not tell.
std::string this_program();

enum class Interpreter {
  ours,   ///< that of scripts/quickstart.sh before python3
  users,  ///< python3, as the user's shell finds it, before ours
  models  ///< that of KVSIM_TORCH, ours, that of the scripts which run models, python3
};

/// The Python of KVSIM_PYTHON, or the first of the others that has these modules; nothing is
/// imported.
std::string find_python(const std::vector<std::string>& modules, const char* command,
                        Interpreter preferred = Interpreter::ours);

/// This process becomes the given program; returns only by throwing, when it does not start.
[[noreturn]] void become(std::vector<std::string> words);

/// Runs a program to its end and returns its exit status, 127 when it does not start. `hear` gets
/// every line of its standard output. It ends when this process does.
int run_python(std::vector<std::string> words, const std::function<void(const std::string&)>& hear);

}  // namespace kvsim::cli
