#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/hdf5.hpp"
#include "io/temporary_file.hpp"
#include "sim/core/layer_trace.hpp"

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
  /// Shapes as in LayerTrace. A scale other than the root's, softcap, window, sink, residual norms
  /// and recorded outputs are stored when present.
  void write_layer(const LayerTrace& layer);
  void commit();

 private:
  void write_root();
  void write_spans();
  h5::Handle create(const std::string& object, hid_t type, const h5::Shape& shape);
  void write(const std::string& object, hid_t type, const h5::Shape& shape, const void* data);
  void write_tensor(const std::string& object, const Tensor& tensor);
  void write_texts(const std::string& object, const std::vector<std::string>& texts);
  void write_attribute(hid_t owner, const char* name, int64_t value);
  void write_attribute(hid_t owner, const char* name, double value);
  void write_attribute(hid_t owner, const char* name, const std::string& value);
  void check(bool good) const;

  TemporaryFile target_;
  TraceInfo info_;
  h5::Handle file_;
  h5::Handle links_;   ///< link creation properties: make the groups of a path
};

}  // namespace kvsim
