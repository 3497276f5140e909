#include "io/trace_writer.hpp"

namespace kvsim {
namespace {

h5::Handle file_type(ElementType type) {
  switch (type) {
    case ElementType::float16: return h5::half_type();
    case ElementType::bfloat16: return h5::Handle(H5Tcopy(H5T_STD_U16LE));
    default: return h5::Handle(H5Tcopy(H5T_IEEE_F32LE));
  }
}

std::string layout_of(const Rotation& rotation) {
  return rotation.interleaved ? "interleaved" : "half";
}

}  // namespace

TraceWriter::TraceWriter(const std::string& path, const TraceInfo& info)
    : file_(path), info_(info) {
  write_root();
  write_spans();
  write_probes();
}

void TraceWriter::write_tensor(const std::string& object, const Tensor& tensor) {
  const h5::Handle type = file_type(tensor.type());
  file_.write(object, type.get(), {tensor.dim(0), tensor.dim(1), tensor.dim(2)}, tensor.data());
  if (tensor.type() == ElementType::bfloat16)
    file_.attribute(object, "encoding", std::string("bfloat16"));
}

void TraceWriter::write_root() {
  file_.attribute("/", "format", std::string("kvtrace"));
  file_.attribute("/", "version", int64_t{1});
  file_.attribute("/", "model", info_.model);
  if (!info_.source.empty()) file_.attribute("/", "source", info_.source);
  const std::pair<const char*, int64_t> sizes[] = {
      {"num_layers", info_.num_layers},     {"num_query_heads", info_.num_query_heads},
      {"num_kv_heads", info_.num_kv_heads}, {"head_dim", info_.head_dim},
      {"hidden_size", info_.hidden_size},   {"prompt_len", info_.prompt_len},
      {"total_len", info_.total_len}};
  for (const auto& [name, value] : sizes) file_.attribute("/", name, value);
  if (info_.latent_size > 0) file_.attribute("/", "latent_size", info_.latent_size);
  file_.attribute("/", "attention_scale", info_.attention_scale);
  file_.write("query_position", H5T_STD_I64LE, {std::ssize(info_.query_position)},
              info_.query_position.data());
  if (!info_.check_position.empty())
    file_.write("check/query_position", H5T_STD_I64LE, {std::ssize(info_.check_position)},
                info_.check_position.data());
  if (!info_.rope_missing.empty()) file_.attribute("/", "rope_missing", info_.rope_missing);
  if (info_.rope.pairs() == 0) return;
  file_.write("rope/inv_freq", H5T_IEEE_F64LE, {static_cast<int64_t>(info_.rope.pairs())},
              info_.rope.inv_freq.data());
  file_.attribute("/", "rope_layout", layout_of(info_.rope));
}

void TraceWriter::write_rotation(const std::string& path, const Rotation& rotation) {
  file_.write(path, H5T_IEEE_F64LE, {static_cast<int64_t>(rotation.pairs())},
              rotation.inv_freq.data());
  file_.attribute(path, "layout", layout_of(rotation));
  file_.attribute(path, "first", rotation.first);
  file_.attribute(path, "attention_factor", rotation.attention_factor);
}

void TraceWriter::write_spans() {
  if (info_.spans.empty()) return;
  std::vector<std::string> names;
  std::vector<int64_t> begins, ends;
  for (const Span& span : info_.spans) {
    names.push_back(span.name);
    begins.push_back(span.begin);
    ends.push_back(span.end);
  }
  const h5::Shape shape{std::ssize(names)};
  file_.write_texts("spans/name", shape, names);
  file_.write("spans/begin", H5T_STD_I64LE, shape, begins.data());
  file_.write("spans/end", H5T_STD_I64LE, shape, ends.data());
}

void TraceWriter::write_probes() {
  for (const ProbeInfo& probe : info_.probes) {
    const std::string path = "probes/" + probe.name + "/";
    const auto integers = [&](const char* name, const std::vector<int64_t>& values) {
      file_.write(path + name, H5T_STD_I64LE, {std::ssize(values)}, values.data());
    };
    std::vector<int64_t> part_begin, read_begin, read_end;
    for (const ProbePart& part : probe.parts) {
      part_begin.push_back(part.tokens.begin);
      read_begin.push_back(part.reads.begin);
      read_end.push_back(part.reads.end);
    }
    integers("position", probe.position);
    integers("part_begin", part_begin);
    integers("read_begin", read_begin);
    integers("read_end", read_end);
    if (!probe.check_token.empty()) integers("check_token", probe.check_token);
    if (probe.answer_begin > 0)
      file_.attribute("probes/" + probe.name, "answer_begin", probe.answer_begin);
  }
}

void TraceWriter::write_probe(const std::string& path, const ProbeInfo& probe,
                              const ProbeLayer& layer, int64_t value_dim) {
  write_tensor(path + "q", layer.q);
  if (!layer.k.empty()) write_tensor(path + "k", layer.k);
  if (!layer.v.empty()) write_tensor(path + "v", layer.v);
  if (!layer.gate.empty()) write_tensor(path + "gate", layer.gate);
  const auto vector = [&](const char* name, const std::vector<float>& values, h5::Shape shape) {
    if (!values.empty()) file_.write(path + name, H5T_IEEE_F32LE, shape, values.data());
  };
  vector("residual_norm", layer.residual_norm, {probe.tokens()});
  vector("input_norm", layer.input_norm, {probe.tokens()});
  vector("output_gradient", layer.output_gradient, {probe.tokens()});
  vector("check_output", layer.check_output,
         {layer.q.dim(0), std::ssize(probe.check_token), value_dim});
}

void TraceWriter::write_tokens(const std::vector<int32_t>& ids,
                               const std::vector<std::string>& texts) {
  if (!ids.empty()) file_.write("tokens/id", H5T_STD_I32LE, {std::ssize(ids)}, ids.data());
  if (!texts.empty()) file_.write_texts("tokens/text", {std::ssize(texts)}, texts);
}

void TraceWriter::write_layer(const LayerTrace& layer) {
  const std::string path = "layers/" + std::to_string(layer.layer);
  assert(layer.q.dim(1) == std::ssize(info_.query_position));
  assert(layer.k.dim(1) == info_.total_len && layer.v.dim(1) == info_.total_len);
  write_tensor(path + "/q", layer.q);
  write_tensor(path + "/k", layer.k);
  write_tensor(path + "/v", layer.v);
  write_tensor(path + "/wo", layer.path.wo.empty() ? layer.wo : layer.path.wo);
  if (!layer.path.gate.empty()) write_tensor(path + "/gate", layer.path.gate);
  const auto vector = [&](const char* name, const std::vector<float>& values, h5::Shape shape) {
    if (!values.empty()) file_.write(path + "/" + name, H5T_IEEE_F32LE, shape, values.data());
  };
  vector("residual_norm", layer.residual_norm, {layer.q.dim(1)});
  vector("attention_sink", layer.attention_sink, {layer.q.dim(0)});
  vector("check_output", layer.check_output,
         {layer.q.dim(0), std::ssize(info_.check_position), layer.value_dim()});
  vector("check_added", layer.check_added, {std::ssize(info_.check_position), info_.hidden_size});
  vector("inner_gain", layer.path.inner.gain, {layer.q.dim(0), layer.value_dim()});
  vector("outer_gain", layer.path.outer.gain, {info_.hidden_size});
  vector("inner_rms", layer.path.inner.rms, {layer.q.dim(1)});
  vector("outer_rms", layer.path.outer.rms, {layer.q.dim(1)});
  if (layer.path.inner.divides) file_.attribute(path, "inner_eps", layer.path.inner.eps);
  if (layer.path.outer.divides) file_.attribute(path, "outer_eps", layer.path.outer.eps);
  for (size_t p = 0; p < layer.probes.size(); ++p)
    write_probe(path + "/probes/" + info_.probes[p].name + "/", info_.probes[p], layer.probes[p],
                layer.value_dim());
  if (const auto own = info_.layer_rope.find(layer.layer); own != info_.layer_rope.end())
    write_rotation(path + "/rope_inv_freq", own->second);
  if (layer.scale != info_.attention_scale) file_.attribute(path, "attention_scale", layer.scale);
  if (layer.softcap > 0) file_.attribute(path, "softcap", layer.softcap);
  if (layer.sliding_window > 0) file_.attribute(path, "sliding_window", layer.sliding_window);
}

}  // namespace kvsim
