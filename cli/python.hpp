#pragma once
#include <string>
#include <vector>

/// What commands that hand over to a Python script share.
namespace kvsim::cli {

/// A script of plots/, e.g. "draw.py": of KVSIM_HOME, beside the program or one folder up, or of
/// the source tree. `command` is named in errors.
std::string find_script(const std::string& name, const char* command);

/// The __main__.py of a subpackage of the Python package, e.g. "search": of the same places, where
/// the package is python/kvsim/ or the place itself.
std::string find_module(const std::string& name, const char* command);

/// Path of the running program; empty where the system does not tell.
std::string this_program();

/// The Python of KVSIM_PYTHON, of scripts/quickstart.sh, or python3: the first that has these
/// modules; nothing is imported.
std::string find_python(const std::vector<std::string>& modules, const char* command);

/// This process becomes the given program; returns only by throwing, when it does not start.
[[noreturn]] void become(std::vector<std::string> words);

}  // namespace kvsim::cli
