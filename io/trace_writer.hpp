#pragma once
#include "io/hdf5.hpp"
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
