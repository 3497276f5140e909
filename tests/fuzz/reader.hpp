#pragma once
#include <sys/types.h>

#include "tests/fuzz/targets.hpp"

namespace kvsim::fuzz {

/// Runs inputs that HDF5 reads in a process of its own, which a damaged file may take down inside
/// the library (docs/security.md 3). As long as none does, the same process takes the next input.
class Reader {
 public:
  explicit Reader(const Target& target);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// Aborts, with a line that says why, when the process ends otherwise than the program may.
  void run(Bytes input);

 private:
  void start();
  [[noreturn]] void serve(int asked, int answers);
  /// False: the process has ended.
  bool answers(Bytes input);
  /// Waits for the end of the process. Unless it was `alone` with its input, false where another
  /// process shall try that once more.
  bool ended_well(bool alone);

  const Target& target_;
  uint8_t* input_;  ///< shared with the process
  pid_t child_ = -1;
  int asks_ = -1, answered_ = -1;
};

}  // namespace kvsim::fuzz
