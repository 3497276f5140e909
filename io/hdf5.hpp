#pragma once
#include <hdf5.h>

#include "io/temporary_file.hpp"
#include "sim/core/tensor.hpp"

/// A small, suspicious layer over HDF5's C interface. Nothing that is read is trusted: shapes are
/// compared with what the file really stores before memory is allocated, links never leave the
/// file, and HDF5's own error printing is off. Every fault is a kvsim::Error (bad data) that names
/// file and object.
namespace kvsim::h5 {

/// Owns one HDF5 identifier.
class Handle {
 public:
  Handle() = default;
  explicit Handle(hid_t id) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();

  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }
  /// Closes now; false where HDF5 could not, e.g. because what it still held cannot be written.
  bool close();

 private:
  hid_t id_ = H5I_INVALID_HID;
};

using Shape = std::vector<int64_t>;

/// "attribute prompt_len" of the root, "layers/3 attribute softcap"
std::string attribute_place(const std::string& object, const std::string& name);
/// "[4, 15, 8]"
std::string shape_text(const Shape& shape);
/// "int64", "float16", "big-endian float32", "variable-length string", ...
std::string type_text(hid_t type);
/// The file type of IEEE binary16, little-endian (what h5py writes for numpy's float16).
Handle half_type();
/// Texts of variable length in UTF-8.
Handle text_type();
/// Properties for reading and writing under which any type conversion is an error: HDF5 gets a
/// conversion buffer too small for one element. Tensors move with these and no others.
Handle no_conversion();
/// Properties of a file that is written: nothing waits in the library, so that every call that
/// writes answers for its own bytes. A dataset's own buffers would be written when it is closed.
Handle unbuffered();
/// HDF5 prints its error stack by default; the program's errors are one line.
void silence_errors();

class InputFile;

class InputDataset {
 public:
  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  hid_t type() const { return type_.get(); }  ///< as it is stored
  bool compressed() const { return compressed_; }

  /// Refuses another rank or shape. `letters` names the axes, e.g. "[Hq, M, d]"; -1 takes any
  /// length >= 1.
  void expect_shape(const Shape& wanted, const char* letters) const;
  /// Stored element type; refuses all but float32, float16 and bfloat16-as-uint16.
  ElementType float_type() const;
  /// Elements as they are stored; room for all of them. No conversion.
  void read_raw(void* out) const;
  std::vector<float> read_floats() const;      ///< any type that float_type() accepts
  std::vector<double> read_doubles() const;    ///< float64, or any that float_type() accepts
  std::vector<int64_t> read_integers() const;  ///< any integer type
  std::vector<std::string> read_text() const;  ///< variable-length or fixed-length strings

  [[noreturn]] void fail(std::string what, std::string found = {}, std::string expected = {}) const;

 private:
  friend class InputFile;
  InputDataset(const InputFile& file, std::string name, Handle id);
  void read_shape();
  void check_layout();
  void check_chunks(hid_t properties, int64_t stored);
  void check_filters(hid_t properties);
  int64_t bytes() const;  ///< of all elements, as stored
  int64_t count() const;
  void read_filtered(size_t element, std::byte* out) const;
  bool read_contiguous(std::byte* out) const;
  void read_references(std::byte* out) const;
  std::vector<std::string> read_variable_text() const;

  const InputFile* file_;
  std::string name_;
  Handle id_;
  Handle type_;
  Shape shape_;
  Shape chunk_;                        ///< empty unless chunked
  int64_t begin_ = -1;                 ///< in the file, of contiguous data; else -1
  std::vector<H5Z_filter_t> filters_;  ///< in the order they were applied
  bool compressed_ = false;
};

/// A file opened for reading.
class InputFile {
 public:
  /// `expected`: what the file should be, for messages, e.g. "kvtrace file".
  InputFile(const std::string& path, const char* expected);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  hid_t id() const { return file_.get(); }

  bool exists(const std::string& object) const;
  /// Names of the links of a group, in ascending order of their bytes.
  std::vector<std::string> children(const std::string& group) const;
  InputDataset dataset(const std::string& object) const;

  /// Attributes of `object` ("/" is the root); nothing when absent, an error on another type.
  std::optional<int64_t> integer_attribute(const std::string& object, const char* name) const;
  std::optional<double> real_attribute(const std::string& object, const char* name) const;
  std::optional<std::string> text_attribute(const std::string& object, const char* name) const;
  /// Where an object's header lies in the file.
  uint64_t address(const std::string& object) const;
  /// Addresses of the dimension scales of a dataset's axes, the first of each; 0 where there is
  /// none.
  std::vector<uint64_t> scale_addresses(const std::string& dataset) const;

  [[noreturn]] void fail(const std::string& object, std::string what, std::string found = {},
                         std::string expected = {}, std::string hint = {}) const;

 private:
  friend class InputDataset;
  Handle open(const std::string& object) const;
  /// Invalid when absent. One that is no `list` has one value.
  Handle open_attribute(const std::string& object, const char* name, bool list = false) const;
  template <class Number>
  std::optional<Number> number_attribute(const std::string& object, const char* name,
                                         H5T_class_t kind, hid_t as, const char* expected) const;

  std::string path_;
  int64_t size_ = 0;
  Handle file_;
  Handle access_;        ///< link access properties that refuse external links
  int descriptor_ = -1;  ///< HDF5's own, where it reads the file as a plain one; else -1
};

bool valid_utf8(std::string_view text);
/// Bytes of the valid UTF-8 sequence at text[i]; 0 if there is none.
size_t utf8_length(std::string_view text, size_t i);
/// The text with every invalid byte replaced by U+FFFD.
std::string repaired_utf8(std::string_view text);

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

// Strings and lists of variable length, read without trust. HDF5 copies them out of its "global
// heap" by the length written there, whatever room it made for it, so that one changed byte of a
// file overruns memory. Here HDF5 hands out the references only, and the heap is read by our own
// code, which believes no length.

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
