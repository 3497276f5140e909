#include "cli/command.hpp"

namespace kvsim::cli {

namespace fs = std::filesystem;

fs::path shipped_file(const std::string& name) {
  std::error_code fault;
  const fs::path prefix = fs::read_symlink("/proc/self/exe", fault).parent_path().parent_path();
  const std::string package = "python/kvsim/";  // a wheel's program lies in bin/ of the package
  const std::string in_package = name.starts_with(package) ? name.substr(package.size()) : name;
  for (const fs::path& file : {prefix / in_package, prefix / name, prefix / "share/kvsim" / name,
                               fs::path(KVSIM_SOURCE_DIR) / name})
    if (fs::is_regular_file(file, fault)) return file;
  return {};
}

std::string shipped(const std::string& path) {
  std::error_code fault;
  if (!path.starts_with("data/") || fs::exists(path, fault)) return path;
  const fs::path found = shipped_file(path);
  return found.empty() ? path : found.string();
}

}  // namespace kvsim::cli
