#pragma once
#include <filesystem>
#include <string>

/// Files that came with the program: the Python package, the sample, prompts, sweeps and searches.
namespace kvsim::cli {

/// A file by its name in the source tree, of the nearest that has it: the wheel or clone of the
/// program, what was installed with it, the tree that it was built from. Empty where none has it.
std::filesystem::path shipped_file(const std::string& name);

/// `path` as it is where it exists or does not begin with data/; else the file of that name that
/// came with the program, if there is one.
std::string shipped(const std::string& path);

}  // namespace kvsim::cli
