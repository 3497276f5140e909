#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim {

/// A file written under a temporary name beside its target and renamed when complete, so that no
/// partial result is ever seen under the target's name. Removed when it is not committed: by the
/// destructor, and by the signal handler of remove_temporary_files_on_signals().
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string target);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }  ///< write here
  const std::string& target() const { return target_; }
  /// Renames to the target; an error leaves the target as it was. Without `flush` a machine that
  /// loses power may keep the name and lose the bytes.
  void commit(bool flush = true);

 private:
  std::string target_;
  std::string path_;
  int slot_ = -1;  ///< in the table the signal handler reads
};

/// A text as a file that is there complete or not at all; `flush` as in TemporaryFile::commit().
void write_file(const std::string& text, const std::string& target, bool flush = true);

/// Refuses (usage error) an existing target unless `overwrite`, anything but a regular file, a file
/// that is one of `inputs`, and a folder that does not exist. To be called before any work.
void check_target(const std::string& target, bool overwrite,
                  const std::vector<std::string>& inputs = {});

/// Makes a folder, and those above it; a usage error when it cannot be made.
void make_folder(const std::string& folder);

/// Removes temporary files of a folder that a program which was killed has left: nothing takes an
/// hour to write, and another may be writing right now.
void remove_abandoned(const std::string& folder);

/// Removes the files of all TemporaryFile objects; may be called in a signal handler.
void remove_temporary_files();

/// From now on SIGINT and SIGTERM remove all temporary files and end the program with status 130.
void remove_temporary_files_on_signals();

/// Adds to the line "interrupted" from now on; a text that lives as long as the program.
void hint_when_interrupted(const char* hint);

}  // namespace kvsim
