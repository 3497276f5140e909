#pragma once
#include "sim/core/prelude.hpp"
#include "tests/support/paths.hpp"

namespace kvsim {

inline const std::filesystem::path kRoot = kSourceDir;  ///< of the repository

/// Files with one of these endings in a folder and those below it; none if there is no such folder.
inline std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder,
                                                      const std::set<std::string>& endings) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::exists(folder)) return files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && endings.contains(entry.path().extension().string()))
      files.push_back(entry.path());
  return files;
}

}  // namespace kvsim
