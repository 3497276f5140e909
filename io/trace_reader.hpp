#pragma once
#include "io/hdf5.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Facts of a layer that are known without reading its tensors.
struct LayerHeader {
  int layer = 0;
  double scale = 0;            ///< logits are scale * q.k
  double softcap = 0;          ///< 0: none
  int64_t sliding_window = 0;  ///< W; 0: none
  int64_t value_dim = 0;       ///< dv
  bool has_sink = false;
  bool has_check = false;  ///< recorded outputs are stored
  bool has_added = false;  ///< what was added to the stream is stored
  int64_t gate_width = 0;  ///< dv or 1; 0: no gate. This and the next: trace-format.md 8
  bool has_inner_gain = false, has_outer_gain = false;
  std::optional<double> inner_eps, outer_eps;  ///< of the norms; none: no norm
  ElementType q = ElementType::float32;
  ElementType k = ElementType::float32;
  ElementType v = ElementType::float32;
  ElementType wo = ElementType::float32;
};

/// Reads a kvtrace file (version 1), one layer at a time. The constructor checks everything but
/// the tensors' contents: attributes, shapes, types, storage, positions and spans of every layer;
/// a bad file is a kvsim::Error (bad data) before any large allocation.
class TraceReader {
 public:
  /// `later`: name of a probe whose tokens take the place of the tokens behind the prompt.
  explicit TraceReader(const std::string& path, const std::string& later = {});

  const TraceInfo& info() const { return later_ < 0 ? info_ : later_info_; }
  /// Name of the probe that takes the place of the later tokens; empty: they are the file's.
  std::string later() const;
  /// One per layer of the file, in the order of info().layers.
  const std::vector<LayerHeader>& headers() const { return headers_; }
  const LayerHeader& header(int layer) const;
  /// Advice about a file that reads (slow compression); each a whole sentence.
  const std::vector<std::string>& warnings() const { return warnings_; }

  /// Everything stored of one layer but its probes; NaN or infinity in a tensor is an error. The
  /// LayerTrace points to info(), so the reader must outlive it. `with_check`: the recorded
  /// outputs, too. `asked`: numbers of the probes that are read.
  LayerTrace read_layer(int layer, bool with_check = false, const std::set<int>& asked = {}) const;

  bool has_token_text() const { return has_token_text_; }
  bool has_token_ids() const { return has_token_ids_; }
  /// [N], valid UTF-8; empty when absent, and of tokens of a probe without texts.
  std::vector<std::string> token_text() const;
  std::vector<int32_t> token_ids() const;  ///< [N]; empty when absent

  int64_t file_size() const { return file_.size(); }
  /// "xxh3-128:" and the hex digest of the file's bytes; the first call reads the whole file. One
  /// thread at a time.
  const std::string& digest() const;

 private:
  void read_root();
  void read_positions();
  void read_spans();
  void read_rope();
  Rotation read_rotation(const std::string& object) const;
  void read_layer_rope(int layer);
  void read_tokens();
  void read_probes();
  void put_later(const std::string& name);
  void check_probe(const std::string& layer_path, const LayerHeader& header,
                   const ProbeInfo& probe);
  void read_layer_list();
  LayerHeader read_header(int layer);
  void check_path(const std::string& layer_path, LayerHeader& header) const;
  OutputPath read_path(const std::string& layer_path, const LayerHeader& header) const;
  void note_compression(const h5::InputDataset& dataset);
  Tensor read_tensor(const std::string& object) const;
  std::vector<float> read_vector(const std::string& object) const;
  ProbeLayer read_probe(const std::string& path, bool with_check, const ProbeInfo& probe) const;
  /// Attributes that must lie in a range; nothing when absent.
  std::optional<int64_t> integer_in(const std::string& object, const char* name, int64_t low,
                                    int64_t high) const;
  std::optional<double> positive(const std::string& object, const char* name) const;

  h5::InputFile file_;
  TraceInfo info_;
  TraceInfo later_info_;  ///< with the tokens of probe `later_` behind the prompt
  int later_ = -1;        ///< number of that probe
  std::vector<LayerHeader> headers_;
  std::vector<std::string> warnings_;
  mutable std::string digest_;  ///< empty until it is asked for
  bool has_token_text_ = false;
  bool has_token_ids_ = false;
};

/// Integers of a dataset: all from `low` to `high`; strictly ascending within a part of it.
void check_range(const h5::InputDataset& dataset, const std::vector<int64_t>& values, int64_t low,
                 int64_t high);
void check_ascending(const h5::InputDataset& dataset, const std::vector<int64_t>& values,
                     Range part);

/// Spans are used in policy records: their names may not contain `+`, `,`, `=` or white space, nor
/// look like a range. Returns what is wrong, or nothing.
std::string span_name_fault(const std::string& name);

}  // namespace kvsim
