#pragma once
#include <string>
#include <vector>

/// What commands that hand over to a Python script share.
namespace kvsim::cli {

/// A script of plots/, e.g. "draw.py": of KVSIM_HOME, beside the program or one folder up, or of
/// the source tree. `command` is named in errors.
std::string find_script(const std::string& name, const char* command);

/// The Python of KVSIM_PYTHON, of scripts/quickstart.sh, or python3: the first that has these
/// modules; nothing is imported.
std::string find_python(const std::vector<std::string>& modules, const char* command);

/// This process becomes the given program; returns only by throwing, when it does not start.
[[noreturn]] void become(std::vector<std::string> words);

}  // namespace kvsim::cli
