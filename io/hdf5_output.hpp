#pragma once
#include "io/hdf5.hpp"
#include "io/temporary_file.hpp"

namespace kvsim::h5 {

/// An HDF5 file written under a temporary name; commit() gives it its own. Groups on the way to a
/// dataset are made. Texts are variable-length UTF-8: what is none becomes U+FFFD. Faults are
/// Errors (failure) that name the target.
class OutputFile {
 public:
  /// An existing file at `path` is replaced on commit; see check_target(). Properties of the file.
  explicit OutputFile(const std::string& path, hid_t creation = H5P_DEFAULT,
                      const Handle& access = unbuffered());

  /// Attributes of an object that exists; "/" is the root.
  void attribute(const std::string& object, const char* name, int64_t value);
  void attribute(const std::string& object, const char* name, double value);
  void attribute(const std::string& object, const char* name, const std::string& value);
  /// One value; or with `count` an array.
  void attribute(const std::string& object, const char* name, hid_t type, const void* values,
                 std::optional<hsize_t> count = {});
  /// A dataset whose elements lie in memory as `type` says: nothing is converted. `creation`: its
  /// properties; contiguous by default.
  void write(const std::string& object, hid_t type, const Shape& shape, const void* data,
             hid_t creation = H5P_DEFAULT);
  void write_texts(const std::string& object, const Shape& shape,
                   const std::vector<std::string>& texts, hid_t creation = H5P_DEFAULT);
  Handle open(const std::string& object) const;
  /// HDF5 fails here when the disk is full or the folder is not writable.
  void check(bool good) const;
  void commit();

 private:
  void write(const std::string& object, hid_t type, const Shape& shape, const void* data,
             hid_t creation, const Handle& transfer);

  TemporaryFile target_;
  Handle file_;
  Handle links_;  ///< link creation properties: make the groups of a path
  Handle plain_;  ///< of a dataset: no times, so that the same data give the same bytes
};

}  // namespace kvsim::h5
