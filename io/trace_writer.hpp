#pragma once
#include "io/hdf5.hpp"
#include "io/temporary_file.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim::h5 {

/// An HDF5 file written under a temporary name; commit() gives it its own. Datasets are contiguous,
/// groups on the way to them are made. Faults are Errors (failure) that name the target.
class OutputFile {
 public:
  /// An existing file at `path` is replaced on commit; see check_target().
  explicit OutputFile(const std::string& path);

  /// Attributes of an object that exists; "/" is the root. Text is variable-length UTF-8.
  void attribute(const std::string& object, const char* name, int64_t value);
  void attribute(const std::string& object, const char* name, double value);
  void attribute(const std::string& object, const char* name, const std::string& value);
  /// A dataset whose elements lie in memory as `type` says: nothing is converted.
  void write(const std::string& object, hid_t type, const Shape& shape, const void* data);
  void write_texts(const std::string& object, const std::vector<std::string>& texts);
  void commit();

 private:
  Handle create(const std::string& object, hid_t type, const Shape& shape);
  void write_attribute(const std::string& object, const char* name, hid_t type, const void* value);
  /// HDF5 fails here when the disk is full or the folder is not writable.
  void check(bool good) const;

  TemporaryFile target_;
  Handle file_;
  Handle links_;  ///< link creation properties: make the groups of a path
};

}  // namespace kvsim::h5

namespace kvsim {

/// Writes a kvtrace file (version 1) under a temporary name, one layer at a time; commit() gives it
/// its name. Every tensor is stored contiguous in the element type it has (see narrow()).
class TraceWriter {
 public:
  /// Writes everything of `info` but its layers: attributes, positions, spans, rotary frequencies.
  /// An existing file at `path` is replaced on commit; see check_target().
  TraceWriter(const std::string& path, const TraceInfo& info);

  /// [N] each; an empty one is not stored.
  void write_tokens(const std::vector<int32_t>& ids, const std::vector<std::string>& texts);
  /// Shapes as in LayerTrace, all probes of `info` among them. A scale other than the root's,
  /// softcap, window, sink, residual norms and recorded outputs are stored when present.
  void write_layer(const LayerTrace& layer);
  void commit() { file_.commit(); }

 private:
  void write_root();
  void write_rotation(const std::string& path, const Rotation& rotation);
  void write_spans();
  void write_probes();
  void write_probe(const std::string& path, const ProbeInfo& probe, const ProbeLayer& layer,
                   int64_t value_dim);
  void write_tensor(const std::string& object, const Tensor& tensor);

  h5::OutputFile file_;
  TraceInfo info_;
};

}  // namespace kvsim
