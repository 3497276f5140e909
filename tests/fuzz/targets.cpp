#include "tests/fuzz/targets.hpp"

#include <unistd.h>

#include <cstdio>

#include "sim/core/prelude.hpp"

namespace kvsim::fuzz {
namespace {

std::vector<Target>& table() {
  static std::vector<Target> all;
  return all;
}

}  // namespace

bool add_target(Target target) {
  const auto later = [](const Target& a, const Target& b) { return a.name < b.name; };
  table().insert(std::upper_bound(table().begin(), table().end(), target, later), target);
  return true;
}

const std::vector<Target>& targets() { return table(); }

void promise(bool holds, const char* what) {
  if (!holds) throw std::logic_error(std::string(what) + " does not hold");
}

void answered(void (*use)(Bytes), Bytes input) {
  try {
    use(input);
  } catch (const Error& error) {
    const std::string_view said = error.what();
    promise(!said.empty() && said.find_first_of("\r\n") == std::string_view::npos,
            "one line for a mistake");
    promise(error.fault() == Fault::usage || error.fault() == Fault::bad_data,
            "a mistake of the input is a usage error or bad data");
  }
}

std::string_view text_of(Bytes input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

std::string InputOnDisk::name(int pid) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
  return (folder / ("kvsim-fuzz-" + std::to_string(pid))).string();
}

InputOnDisk::InputOnDisk(Bytes input) : path_(name(getpid())) {
  std::FILE* const file = std::fopen(path_.c_str(), "wb");
  if (file == nullptr) throw std::runtime_error("no file for an input: " + path_);
  const size_t written = std::fwrite(input.data(), 1, input.size(), file);
  if (std::fclose(file) != 0 || written != input.size())
    throw std::runtime_error("an input cannot be written: " + path_);
}

InputOnDisk::~InputOnDisk() { unlink(path_.c_str()); }

}  // namespace kvsim::fuzz
