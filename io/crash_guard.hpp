#pragma once
#include <string>

/// HDF5 1.10 trusts the lengths inside an object header; a damaged file can make it read outside
/// its buffers and crash. That cannot be checked from outside, so a crash inside the library is
/// turned into what every other damaged file gives: one line and the exit status for bad data.
namespace kvsim {

/// While one lives, its thread is inside HDF5, reading the file at `path` (which must outlive it).
class ReadingGuard {
 public:
  explicit ReadingGuard(const std::string& path);
  ~ReadingGuard();
  ReadingGuard(const ReadingGuard&) = delete;
  ReadingGuard& operator=(const ReadingGuard&) = delete;

 private:
  const char* outer_;
};

/// From now on a crash of a thread that holds a ReadingGuard removes temporary files, prints one
/// line and ends the program with status 3. Any other crash stays one.
void report_crashes_while_reading();

}  // namespace kvsim
