#pragma once
#include "sim/core/prelude.hpp"

/// What fuzzing runs: one function per kind of input from outside (docs/debugging.md 9). Any bytes
/// are either taken or answered by a kvsim::Error of one line. Everything else is a find: another
/// exception, a broken promise (std::logic_error), a crash, a hang, memory beyond the limit.
namespace kvsim::fuzz {

using Bytes = std::span<const uint8_t>;

struct Target {
  std::string name;
  void (*run)(Bytes input);
  bool hdf5 = false;  ///< inputs are HDF5 files
  /// Inputs to start from, as long as the corpus has none of the kind.
  std::vector<std::string> (*seeds)() = nullptr;
};

/// Registers a target from its file.
bool add_target(Target target);
/// Ascending by name.
const std::vector<Target>& targets();

/// Runs `use`; a mistake must be told in one line. Throws std::logic_error where it is not.
void answered(void (*use)(Bytes), Bytes input);
/// std::logic_error: "WHAT does not hold".
void promise(bool holds, const char* what);

std::string_view text_of(Bytes input);

/// The input as a file in memory, removed with the object.
class InputOnDisk {
 public:
  explicit InputOnDisk(Bytes input);
  ~InputOnDisk();
  InputOnDisk(const InputOnDisk&) = delete;
  InputOnDisk& operator=(const InputOnDisk&) = delete;
  const std::string& path() const { return path_; }
  /// Of the process `pid`.
  static std::string name(int pid);

 private:
  std::string path_;
};

/// Changes an HDF5 file where its structure is: fields of headers, tables and heaps, or through the
/// library itself. Returns the new size, at most `most`.
size_t mutate_hdf5(uint8_t* data, size_t size, size_t most, unsigned seed,
                   const std::vector<std::string>& seeds);

}  // namespace kvsim::fuzz
