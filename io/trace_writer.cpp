#include "io/trace_writer.hpp"

#include <cassert>
#include <utility>

#include "sim/core/error.hpp"

namespace kvsim {
namespace {

h5::Handle text_type() {
  h5::Handle type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

h5::Handle file_type(ElementType type) {
  switch (type) {
    case ElementType::float16: return h5::half_type();
    case ElementType::bfloat16: return h5::Handle(H5Tcopy(H5T_STD_U16LE));
    default: return h5::Handle(H5Tcopy(H5T_IEEE_F32LE));
  }
}

}  // namespace

TraceWriter::TraceWriter(const std::string& path, const TraceInfo& info)
    : target_(path), info_(info) {
  h5::silence_errors();
  file_ = h5::Handle(H5Fcreate(target_.path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  links_ = h5::Handle(H5Pcreate(H5P_LINK_CREATE));
  check(file_.valid() && H5Pset_create_intermediate_group(links_.get(), 1) >= 0);
  write_root();
  write_spans();
}

/// HDF5 fails here when the disk is full or the folder is not writable.
void TraceWriter::check(bool good) const {
  if (!good)
    throw Error(Fault::failure, {.what = "cannot be written", .where = target_.target(),
                                 .hint = "is the disk full?"});
}

void TraceWriter::write_attribute(hid_t owner, const char* name, int64_t value) {
  const h5::Handle space(H5Screate(H5S_SCALAR));
  const h5::Handle attribute(
      H5Acreate2(owner, name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  check(attribute.valid() && H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value) >= 0);
}

void TraceWriter::write_attribute(hid_t owner, const char* name, double value) {
  const h5::Handle space(H5Screate(H5S_SCALAR));
  const h5::Handle attribute(
      H5Acreate2(owner, name, H5T_IEEE_F64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  check(attribute.valid() && H5Awrite(attribute.get(), H5T_NATIVE_DOUBLE, &value) >= 0);
}

void TraceWriter::write_attribute(hid_t owner, const char* name, const std::string& value) {
  const h5::Handle space(H5Screate(H5S_SCALAR));
  const h5::Handle type = text_type();
  const h5::Handle attribute(
      H5Acreate2(owner, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT));
  const char* text = value.c_str();
  check(attribute.valid() && H5Awrite(attribute.get(), type.get(), &text) >= 0);
}

h5::Handle TraceWriter::create(const std::string& object, hid_t type, const h5::Shape& shape) {
  const std::vector<hsize_t> lengths(shape.begin(), shape.end());
  const h5::Handle space(
      H5Screate_simple(static_cast<int>(lengths.size()), lengths.data(), nullptr));
  h5::Handle dataset(H5Dcreate2(file_.get(), object.c_str(), type, space.get(), links_.get(),
                                H5P_DEFAULT, H5P_DEFAULT));
  check(space.valid() && dataset.valid());
  return dataset;
}

void TraceWriter::write(const std::string& object, hid_t type, const h5::Shape& shape,
                        const void* data) {
  const h5::Handle dataset = create(object, type, shape);
  check(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, h5::no_conversion().get(), data) >= 0);
}

void TraceWriter::write_texts(const std::string& object, const std::vector<std::string>& texts) {
  const h5::Handle type = text_type();
  const h5::Handle dataset = create(object, type.get(), {static_cast<int64_t>(texts.size())});
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, pointers.data()) >= 0);
}

void TraceWriter::write_tensor(const std::string& object, const Tensor& tensor) {
  const h5::Handle type = file_type(tensor.type());
  write(object, type.get(), {tensor.dim(0), tensor.dim(1), tensor.dim(2)}, tensor.data());
  if (tensor.type() != ElementType::bfloat16) return;
  const h5::Handle dataset(H5Dopen2(file_.get(), object.c_str(), H5P_DEFAULT));
  write_attribute(dataset.get(), "encoding", std::string("bfloat16"));
}

void TraceWriter::write_root() {
  const hid_t root = file_.get();
  write_attribute(root, "format", std::string("kvtrace"));
  write_attribute(root, "version", int64_t{1});
  write_attribute(root, "model", info_.model);
  if (!info_.source.empty()) write_attribute(root, "source", info_.source);
  const std::pair<const char*, int64_t> sizes[] = {
      {"num_layers", info_.num_layers},     {"num_query_heads", info_.num_query_heads},
      {"num_kv_heads", info_.num_kv_heads}, {"head_dim", info_.head_dim},
      {"hidden_size", info_.hidden_size},   {"prompt_len", info_.prompt_len},
      {"total_len", info_.total_len}};
  for (const auto& [name, value] : sizes) write_attribute(root, name, value);
  write_attribute(root, "attention_scale", info_.attention_scale);
  write("query_position", H5T_STD_I64LE, {static_cast<int64_t>(info_.query_position.size())},
        info_.query_position.data());
  if (!info_.check_position.empty())
    write("check/query_position", H5T_STD_I64LE,
          {static_cast<int64_t>(info_.check_position.size())}, info_.check_position.data());
  if (info_.rope_inv_freq.empty()) return;
  write("rope/inv_freq", H5T_IEEE_F64LE, {static_cast<int64_t>(info_.rope_inv_freq.size())},
        info_.rope_inv_freq.data());
  write_attribute(root, "rope_layout",
                  std::string(info_.rope_interleaved ? "interleaved" : "half"));
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
  const h5::Shape shape{static_cast<int64_t>(names.size())};
  write_texts("spans/name", names);
  write("spans/begin", H5T_STD_I64LE, shape, begins.data());
  write("spans/end", H5T_STD_I64LE, shape, ends.data());
}

void TraceWriter::write_tokens(const std::vector<int32_t>& ids,
                               const std::vector<std::string>& texts) {
  if (!ids.empty())
    write("tokens/id", H5T_STD_I32LE, {static_cast<int64_t>(ids.size())}, ids.data());
  if (!texts.empty()) write_texts("tokens/text", texts);
}

void TraceWriter::write_layer(const LayerTrace& layer) {
  const std::string path = "layers/" + std::to_string(layer.layer);
  assert(layer.q.dim(1) == static_cast<int64_t>(info_.query_position.size()));
  assert(layer.k.dim(1) == info_.total_len && layer.v.dim(1) == info_.total_len);
  write_tensor(path + "/q", layer.q);
  write_tensor(path + "/k", layer.k);
  write_tensor(path + "/v", layer.v);
  write_tensor(path + "/wo", layer.wo);
  const auto vector = [&](const char* name, const std::vector<float>& values, h5::Shape shape) {
    if (!values.empty()) write(path + "/" + name, H5T_IEEE_F32LE, shape, values.data());
  };
  vector("residual_norm", layer.residual_norm, {layer.q.dim(1)});
  vector("attention_sink", layer.attention_sink, {layer.q.dim(0)});
  vector("check_output", layer.check_output,
         {layer.q.dim(0), static_cast<int64_t>(info_.check_position.size()), layer.value_dim()});
  const h5::Handle group(H5Gopen2(file_.get(), path.c_str(), H5P_DEFAULT));
  check(group.valid());
  if (layer.scale != info_.attention_scale)
    write_attribute(group.get(), "attention_scale", layer.scale);
  if (layer.softcap > 0) write_attribute(group.get(), "softcap", layer.softcap);
  if (layer.sliding_window > 0)
    write_attribute(group.get(), "sliding_window", layer.sliding_window);
}

void TraceWriter::commit() {
  check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) >= 0);
  file_ = h5::Handle();
  target_.commit();
}

}  // namespace kvsim
