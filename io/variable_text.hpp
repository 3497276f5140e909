#pragma once
#include <hdf5.h>

#include "sim/core/prelude.hpp"

namespace kvsim::h5 {

/// Strings and lists of variable length, read without trust. HDF5 copies them out of its "global
/// heap" by the length written there, whatever room it made for it, so that one changed byte of a
/// file overruns memory. Here HDF5 hands out the references only, and the heap is read by our own
/// code, which believes no length.

/// Bytes of one reference: length (4), address of the heap collection (8), index in it (4).
constexpr size_t kTextReference = 16;

/// A 16-byte memory type: reading strings or lists of variable length into it gives the references.
hid_t text_reference_type();

/// The global heap of one file.
class TextHeap {
 public:
  /// `file`: the open HDF5 file at `path`, `size` bytes long.
  TextHeap(const std::string& path, hid_t file, int64_t size);

  enum class Outcome { text, null, damaged };
  struct Result {
    Outcome outcome = Outcome::damaged;
    std::string text;
  };
  /// The string that the 16 bytes at `reference` refer to.
  Result read(const std::byte* reference);
  /// The first of a list of object references, as the object's address; 0: the list is empty.
  /// Nothing: it is damaged.
  std::optional<uint64_t> first_object(const std::byte* reference);

 private:
  struct Place {
    size_t begin = 0;
    size_t size = 0;
  };
  struct Collection {
    std::vector<char> bytes;
    std::map<uint32_t, Place> objects;  ///< by index
  };
  /// The `length` bytes that the reference leads to; nothing: damaged.
  std::optional<std::string_view> object(const std::byte* reference, uint64_t length);
  const Collection* collection(uint64_t address);
  std::optional<Collection> load(uint64_t address);

  std::ifstream file_;
  uint64_t size_ = 0;
  uint64_t base_ = 0;  ///< addresses count from here
  bool known_sizes_ = false;
  std::map<uint64_t, Collection> loaded_;
  uint64_t loaded_bytes_ = 0;
};

}  // namespace kvsim::h5
