#include "run/sweep/sweep_store.hpp"

#include <chrono>
#include <filesystem>

#include "io/results_writer.hpp"
#include "run/study/known_results.hpp"
#include "sim/core/error.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

/// Another shard may be writing right now; nothing takes that long to write.
constexpr auto kAbandoned = std::chrono::hours(1);

void remove_abandoned(const std::string& folder) {
  std::error_code fault;
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, fault)) {
    if (entry.path().extension() != ".part") continue;
    const auto written = entry.last_write_time(fault);
    if (!fault && now - written > kAbandoned) fs::remove(entry.path(), fault);
  }
}

}  // namespace

void SweepStore::open() const {
  std::error_code fault;
  fs::create_directories(folder_, fault);
  if (!fs::is_directory(folder_)) {
    usage_error({.what = "the folder cannot be made", .where = folder_, .found = fault.message()});
  }
  remove_abandoned(folder_);
}

std::string SweepStore::path(const std::string& key) const {
  return (fs::path(folder_) / (key + ".nc")).string();
}

bool SweepStore::has(const std::string& key) const {
  std::error_code fault;
  return fs::is_regular_file(path(key), fault);
}

void SweepStore::save(const std::string& key, const Dataset& unit) const {
  write_results(unit, path(key));  // under another name first, then renamed
}

Dataset SweepStore::load(const std::string& key) const {
  try {
    return read_known_results(path(key));
  } catch (const Error& error) {
    Error::Parts parts = error.parts();
    parts.hint = "delete " + path(key) + " and run the sweep again";
    throw Error(error.fault(), std::move(parts));
  }
}

}  // namespace kvsim
