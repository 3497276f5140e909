#pragma once
#include "sim/core/prelude.hpp"

/// HDF5 1.10 trusts what headers say; a damaged file can make it read outside its buffers and
/// crash, or follow a chain that has no end. That cannot be checked from outside, so both become
/// what every other damaged file gives: one line and the exit status for bad data.
namespace kvsim {

/// While one lives, its thread is inside HDF5, reading the file at `path` (which must outlive it)
/// and decoding `bytes` of data there. The patience begins anew at each guard and after it.
class ReadingGuard {
 public:
  explicit ReadingGuard(const std::string& path, double bytes = 0);
  ~ReadingGuard();
  ReadingGuard(const ReadingGuard&) = delete;
  ReadingGuard& operator=(const ReadingGuard&) = delete;

 private:
  const char* outer_;
};

/// Does this thread hold a ReadingGuard?
bool inside_library();

/// From now on a crash of a thread that holds a ReadingGuard, or its patience at an end, removes
/// temporary files, prints one line and ends the program with status 3. Any other crash stays one.
/// `patience`: seconds of the thread's processor time for headers, which take milliseconds; 100 ns
/// more for each byte of data.
void report_crashes_while_reading(double patience = 2);

}  // namespace kvsim
