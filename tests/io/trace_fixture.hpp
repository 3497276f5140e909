#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5.hpp"
#include "sim/core/error.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim::test {

/// A folder of its own for one test, removed afterwards.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Hq 4, Hkv 2, d 8, dv 6, D 12, n 10, N 16, all queries, layers 0 and 2 of 3, two spans, token ids
/// and texts, recorded outputs at 3 and 15, residual norms; layer 2 has softcap, window, sink and a
/// scale of its own.
TraceInfo small_info();
LayerTrace small_layer(const TraceInfo& info, int layer, ElementType type);
/// Writes that trace with TraceWriter.
void write_small_trace(const std::string& path, ElementType type = ElementType::float32);

/// That trace, in a folder of its own.
struct SmallTrace {
  explicit SmallTrace(ElementType type = ElementType::float32) { write_small_trace(path, type); }
  const TemporaryFolder folder;
  const std::string path = folder / "t.h5";
};
/// Writes a trace as it stands.
void write_trace(const std::string& path, const TraceInfo& info,
                 std::span<const LayerTrace> layers);

/// How create() stores a dataset.
struct Storage {
  h5::Shape chunk = {};
  bool shuffle = false;
  int gzip = 0;  ///< level
  bool fletcher32 = false;
};

/// Changes a file through the HDF5 C interface; objects are replaced.
class Editor {
 public:
  explicit Editor(const std::string& path);
  void remove(const std::string& object);
  void remove_attribute(const std::string& object, const char* name);
  void integer(const std::string& object, const char* name, int64_t value);
  void real(const std::string& object, const char* name, double value);
  void text(const std::string& object, const char* name, const std::string& value);
  void null_text(const std::string& object, const char* name);
  void array(const std::string& object, const char* name, const std::vector<int64_t>& values);
  /// A dataset of file type `type`, filled with `data` of memory type `memory` (null: not written).
  void dataset(const std::string& object, hid_t type, const h5::Shape& shape, hid_t memory,
               const void* data, const Storage& storage = {});
  void integers(const std::string& object, const std::vector<int64_t>& values);
  void texts(const std::string& object, const std::vector<const char*>& values);
  /// The same dataset with one element (flat index) replaced.
  void set_float(const std::string& object, int64_t index, float value);
  /// Stores an existing dataset again, raw, in another layout.
  void store_again(const std::string& object, const Storage& storage);
  void external_link(const std::string& object, const std::string& file, const char* target);
  void soft_link(const std::string& object, const char* target);
  void group(const std::string& object);
  hid_t file() const { return file_.get(); }

 private:
  h5::Handle file_;
};

/// The message and fault of the kvsim::Error that `action` throws; fails the test when it does not.
struct Thrown {
  std::string message;
  Fault fault = Fault::failure;
};
Thrown error_of(const std::function<void()>& action);
/// The message of a refusal, which must be of this kind; empty where nothing is refused.
std::string refusal_of(Fault fault, const std::function<void()>& action);

/// Runs the kvsim binary with these arguments (shell text) in the repository's root.
struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
};
Outcome run_kvsim(const std::string& arguments);
/// A run that ended with this status and one line on standard error that says so.
void check_refused(const Outcome& outcome, int status, const std::string& message);

/// A trace by `kvsim synth` (60 + 12 tokens in two layers, all queries stored, unless `more` says
/// otherwise), and a place for results.
struct Synthesized {
  explicit Synthesized(const std::string& more = "");
  Outcome replay(const std::string& arguments) const;  ///< to `results`

  const TemporaryFolder folder;
  const std::string trace = folder / "t.h5";
  const std::string results = folder / "r.nc";
};

/// Exit status of `action` in a process of its own (128 + signal when killed), which is as fresh as
/// the kvsim program: its signal handlers, none of the test framework. Bad data gives 3. Standard
/// error goes to the file `err`.
int status_of(const std::string& err, const std::function<void()>& action);

std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);

}  // namespace kvsim::test
