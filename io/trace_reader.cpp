#include "io/trace_reader.hpp"

#include <charconv>

#include "io/side_files.hpp"

namespace kvsim {
namespace {

constexpr int64_t kMostHeads = std::numeric_limits<int>::max();
constexpr int64_t kMostLength = int64_t{1} << 40;  // products of two lengths cannot overflow

std::string layer_path(int layer) { return "layers/" + std::to_string(layer); }

/// Layer index of a link name in plain decimal; -1 for anything else.
int layer_index(const std::string& name) {
  int layer = -1;
  const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool whole = fault == std::errc() && end == name.data() + name.size();
  return whole && layer >= 0 && std::to_string(layer) == name ? layer : -1;
}

/// [3, 1, 7] for flat index `flat` of a tensor of that shape.
std::string index_text(const h5::Shape& shape, int64_t flat) {
  h5::Shape index(shape.size());
  for (size_t a = shape.size(); a-- > 0;) {
    index[a] = flat % shape[a];
    flat /= shape[a];
  }
  return h5::shape_text(index);
}

void check_finite(const h5::InputDataset& dataset, ElementType type, const void* raw,
                  int64_t count) {
  constexpr int64_t kPiece = int64_t{1} << 21;  // elements that one thread looks at
  const auto from = [&](int64_t element) {
    return static_cast<const std::byte*>(raw) + static_cast<size_t>(element) * element_size(type);
  };
  std::vector<int64_t> bad_of_piece((count + kPiece - 1) / kPiece, -1);
  parallel_for(std::ssize(bad_of_piece), [&](int64_t piece) {
    const int64_t begin = piece * kPiece;
    const int64_t bad = first_non_finite(type, from(begin), std::min(kPiece, count - begin));
    if (bad >= 0) bad_of_piece[piece] = begin + bad;
  });
  const auto first = std::ranges::find_if(bad_of_piece, [](int64_t bad) { return bad >= 0; });
  if (first == bad_of_piece.end()) return;
  const int64_t bad = *first;
  float value = 0;
  widen(type, from(bad), 1, &value);
  dataset.fail("not a finite number",
               (std::isnan(value) ? "NaN at " : "infinity at ") + index_text(dataset.shape(), bad),
               "finite numbers");
}

/// Whether pairs are of neighbours; the layout stands in `object`'s attribute `name`.
bool read_layout(const h5::InputFile& file, const std::string& object, const char* name) {
  const auto layout = file.text_attribute(object, name);
  if (layout == "half" || layout == "interleaved") return layout == "interleaved";
  file.fail(h5::attribute_place(object, name), layout ? "unknown layout" : "missing",
            layout ? "\"" + *layout + "\"" : "", "\"half\" or \"interleaved\"");
}

}  // namespace

void check_range(const h5::InputDataset& dataset, const std::vector<int64_t>& values, int64_t low,
                 int64_t high) {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] < low || values[i] > high)
      dataset.fail("out of range", std::to_string(values[i]) + " at index " + std::to_string(i),
                   std::to_string(low) + " to " + std::to_string(high));
}

void check_ascending(const h5::InputDataset& dataset, const std::vector<int64_t>& values,
                     Range part) {
  for (int64_t i = part.begin + 1; i < part.end; ++i)
    if (values[i] <= values[i - 1])
      dataset.fail("not ascending",
                   std::to_string(values[i]) + " after " + std::to_string(values[i - 1]) +
                       " at index " + std::to_string(i),
                   "strictly ascending numbers");
}

std::string span_name_fault(const std::string& name) {
  if (name.empty()) return "an empty name";
  if (!h5::valid_utf8(name)) return "a name that is not UTF-8";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte == 0x7F) return "a name with white space or a control character";
    if (c == '+' || c == ',' || c == '=') return "\"" + name + "\"";
  }
  const size_t dash = name.find('-');
  const auto digits = [](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  };
  if (dash != std::string::npos && digits(name.substr(0, dash)) && digits(name.substr(dash + 1)))
    return "\"" + name + "\", which looks like a range";
  return {};
}

TraceReader::TraceReader(const std::string& path, const std::string& later)
    : file_(path, "kvtrace file") {
  info_.path = path;
  read_root();
  read_positions();
  read_spans();
  read_rope();
  read_tokens();
  read_probes();
  read_layer_list();
  if (!later.empty()) put_later(later);
}

std::string TraceReader::later() const { return later_ < 0 ? "" : info_.probes[later_].name; }

std::optional<int64_t> TraceReader::integer_in(const std::string& object, const char* name,
                                               int64_t low, int64_t high) const {
  const auto value = file_.integer_attribute(object, name);
  if (value && (*value < low || *value > high))
    file_.fail(h5::attribute_place(object, name), "out of range", std::to_string(*value),
               std::to_string(low) + " to " + std::to_string(high));
  return value;
}

std::optional<double> TraceReader::positive(const std::string& object, const char* name) const {
  const auto value = file_.real_attribute(object, name);
  if (value && (!std::isfinite(*value) || *value <= 0))
    file_.fail(h5::attribute_place(object, name), "out of range", std::to_string(*value),
               "a positive number");
  return value;
}

void TraceReader::read_root() {
  const auto needed = [&](const char* name, auto value, const char* expected) {
    if (!value) file_.fail(h5::attribute_place("/", name), "missing", {}, expected);
    return *value;
  };
  const auto size = [&](const char* name, int64_t most) {
    return needed(name, integer_in("/", name, 1, most), "an integer");
  };
  const auto format = file_.text_attribute("/", "format");
  if (!format && file_.text_attribute("/", "kvsim_version"))
    bad_data({"results of kvsim stand where a trace is expected", info_.path,
              "a results file of " + file_.text_attribute("/", "trace").value_or("a trace"),
              "a trace", "kvsim inspect, plot, report and explain read results"});
  if (format != "kvtrace")
    file_.fail("attribute format", format ? "not a trace" : "missing",
               format ? "\"" + *format + "\"" : "", "\"kvtrace\"");
  const int64_t version = needed("version", file_.integer_attribute("/", "version"), "1");
  if (version != 1)
    file_.fail("attribute version", version > 1 ? "version from the future" : "no such version",
               std::to_string(version), "1");
  info_.model = needed("model", file_.text_attribute("/", "model"), "a string");
  info_.source = file_.text_attribute("/", "source").value_or("");
  info_.num_layers = static_cast<int>(size("num_layers", kMostHeads));
  info_.num_query_heads = static_cast<int>(size("num_query_heads", kMostHeads));
  info_.num_kv_heads = static_cast<int>(size("num_kv_heads", kMostHeads));
  if (info_.num_query_heads % info_.num_kv_heads != 0)
    file_.fail("attribute num_query_heads", "not a multiple of num_kv_heads",
               std::to_string(info_.num_query_heads),
               "a multiple of " + std::to_string(info_.num_kv_heads));
  info_.head_dim = size("head_dim", kMostLength);
  info_.hidden_size = size("hidden_size", kMostLength);
  info_.latent_size = integer_in("/", "latent_size", 1, kMostLength).value_or(0);
  info_.total_len = size("total_len", kMostLength);
  info_.prompt_len = size("prompt_len", kMostLength);
  if (info_.prompt_len > info_.total_len)
    file_.fail("attribute prompt_len", "out of range", std::to_string(info_.prompt_len),
               "at most total_len = " + std::to_string(info_.total_len));
  info_.attention_scale = needed("attention_scale", positive("/", "attention_scale"), "a float");
}

void TraceReader::read_positions() {
  const auto queries = file_.dataset("query_position");
  queries.expect_shape({-1}, "[M]");
  info_.query_position = queries.read_integers();
  check_range(queries, info_.query_position, 0, info_.total_len - 1);
  check_ascending(queries, info_.query_position, {0, std::ssize(info_.query_position)});
  if (!file_.exists("check/query_position")) return;
  const auto checked = file_.dataset("check/query_position");
  if (checked.shape().size() != 1)
    checked.fail("wrong rank", h5::shape_text(checked.shape()), "[R]");
  info_.check_position = checked.read_integers();
  check_range(checked, info_.check_position, 0, info_.total_len - 1);
  check_ascending(checked, info_.check_position, {0, std::ssize(info_.check_position)});
}

void TraceReader::read_spans() {
  const bool any = file_.exists("spans/name") || file_.exists("spans/begin") ||
                   file_.exists("spans/end");
  if (!any) return;
  const auto name_data = file_.dataset("spans/name");
  const auto begin_data = file_.dataset("spans/begin");
  const auto end_data = file_.dataset("spans/end");
  if (name_data.shape().size() != 1)
    name_data.fail("wrong rank", h5::shape_text(name_data.shape()), "[S]");
  begin_data.expect_shape(name_data.shape(), "[S]");
  end_data.expect_shape(name_data.shape(), "[S]");
  const auto names = name_data.read_text();
  const auto begins = begin_data.read_integers();
  const auto ends = end_data.read_integers();
  std::set<std::string> seen;
  std::vector<int64_t> around;  // ends of the spans that the next one may lie in, outermost first
  for (size_t s = 0; s < names.size(); ++s) {
    const std::string fault = span_name_fault(names[s]);
    if (!fault.empty())
      name_data.fail("bad span name", fault + " at index " + std::to_string(s),
                     "a name without + , = or white space that is no range");
    if (!seen.insert(names[s]).second)
      name_data.fail("span name used twice", "\"" + names[s] + "\"", "distinct names");
    const std::string range = names[s] + " " + std::to_string(begins[s]) + " to " +
                              std::to_string(ends[s]);
    if (begins[s] < 0 || ends[s] < begins[s] || ends[s] > info_.prompt_len)
      file_.fail("spans", "span out of range", range,
                 "0 <= begin <= end <= prompt_len = " + std::to_string(info_.prompt_len));
    if (s > 0 &&
        (begins[s] < begins[s - 1] || (begins[s] == begins[s - 1] && ends[s] > ends[s - 1])))
      file_.fail("spans", "spans are not ascending", range,
                 "ascending begins, the longer of two with the same begin first");
    while (!around.empty() && around.back() <= begins[s]) around.pop_back();
    if (!around.empty() && ends[s] > around.back())
      file_.fail("spans", "spans overlap", range,
                 "a begin of at least " + std::to_string(around.back()) + ", or no later end");
    around.push_back(ends[s]);
    info_.spans.push_back({names[s], begins[s], ends[s]});
  }
}

/// The frequencies alone.
Rotation TraceReader::read_rotation(const std::string& object) const {
  const auto data = file_.dataset(object);
  Rotation rotation;
  rotation.inv_freq = data.read_doubles();
  for (const double frequency : rotation.inv_freq)
    if (!std::isfinite(frequency))
      data.fail("not a finite number", "NaN or infinity", "finite numbers");
  return rotation;
}

void TraceReader::read_rope() {
  info_.rope_missing = file_.text_attribute("/", "rope_missing").value_or("");
  if (!file_.exists("rope/inv_freq")) return;
  const auto data = file_.dataset("rope/inv_freq");
  if (info_.head_dim % 2 != 0)
    data.fail("rotary frequencies need an even head_dim", std::to_string(info_.head_dim));
  data.expect_shape({info_.head_dim / 2}, "[d/2]");
  info_.rope = read_rotation("rope/inv_freq");
  info_.rope.interleaved = read_layout(file_, "/", "rope_layout");
}

void TraceReader::read_layer_rope(int layer) {
  const std::string object = layer_path(layer) + "/rope_inv_freq";
  if (!file_.exists(object)) return;
  const auto data = file_.dataset(object);
  const int64_t most = info_.head_dim / 2;
  data.expect_shape({-1}, "[r]");
  if (data.shape()[0] > most)
    data.fail("more pairs than a head has", std::to_string(data.shape()[0]),
              "at most " + std::to_string(most));
  Rotation rotation = read_rotation(object);
  rotation.interleaved = read_layout(file_, object, "layout");
  const int64_t room = info_.head_dim - 2 * data.shape()[0];
  rotation.first = integer_in(object, "first", 0, room).value_or(0);
  rotation.attention_factor = positive(object, "attention_factor").value_or(1);
  info_.layer_rope.emplace(layer, std::move(rotation));
}

void TraceReader::read_tokens() {
  const h5::Shape shape{info_.total_len};
  has_token_ids_ = file_.exists("tokens/id");
  has_token_text_ = file_.exists("tokens/text");
  if (has_token_ids_) file_.dataset("tokens/id").expect_shape(shape, "[N]");
  if (has_token_text_) file_.dataset("tokens/text").expect_shape(shape, "[N]");
}

std::vector<std::string> TraceReader::token_text() const {
  if (!has_token_text_) return {};
  std::vector<std::string> texts = file_.dataset("tokens/text").read_text();
  if (later_ >= 0) {
    texts.resize(info_.prompt_len);
    const std::string path = "probes/" + later() + "/token_text";
    if (file_.exists(path))
      for (const std::string& text : file_.dataset(path).read_text()) texts.push_back(text);
    texts.resize(later_info_.total_len);
  }
  for (std::string& text : texts) text = h5::repaired_utf8(text);
  return texts;
}

std::vector<int32_t> TraceReader::token_ids() const {
  if (!has_token_ids_) return {};
  std::vector<int32_t> ids;
  const auto add = [&](const std::string& path) {
    const auto data = file_.dataset(path);
    for (const int64_t id : data.read_integers()) {
      if (id < std::numeric_limits<int32_t>::min() || id > std::numeric_limits<int32_t>::max())
        data.fail("out of range", std::to_string(id), "int32");
      ids.push_back(static_cast<int32_t>(id));
    }
  };
  add("tokens/id");
  if (later_ >= 0) {
    ids.resize(info_.prompt_len);
    add("probes/" + later() + "/token_id");
  }
  return ids;
}

void TraceReader::read_layer_list() {
  for (const std::string& name : file_.children("layers")) {
    const int layer = layer_index(name);
    if (layer < 0 || layer >= info_.num_layers)
      file_.fail("layers/" + name, "no layer of the model", "\"" + name + "\"",
                 "a decimal index from 0 to " + std::to_string(info_.num_layers - 1));
    info_.layers.push_back(layer);
  }
  if (info_.layers.empty())
    file_.fail("layers", "no layers", "an empty group", "at least one layer");
  std::sort(info_.layers.begin(), info_.layers.end());
  info_.has_residual_norm = file_.exists(layer_path(info_.layers[0]) + "/residual_norm");
  for (const int layer : info_.layers) {
    headers_.push_back(read_header(layer));
    read_layer_rope(layer);
  }
}

void TraceReader::note_compression(const h5::InputDataset& dataset) {
  if (dataset.compressed() && warnings_.empty())
    warnings_.push_back(info_.path + ": " + dataset.name() +
                        " is compressed; reading is many times slower than from a plain file");
}

LayerHeader TraceReader::read_header(int layer) {
  const std::string path = layer_path(layer);
  LayerHeader header;
  header.layer = layer;
  header.scale = positive(path, "attention_scale").value_or(info_.attention_scale);
  header.softcap = positive(path, "softcap").value_or(0);
  header.sliding_window = integer_in(path, "sliding_window", 1, kMostLength).value_or(0);

  const int64_t heads = info_.num_query_heads, kv_heads = info_.num_kv_heads;
  const auto queries = std::ssize(info_.query_position);
  const auto check = [&](const char* name, const h5::Shape& shape, const char* letters) {
    const auto dataset = file_.dataset(path + "/" + name);
    dataset.expect_shape(shape, letters);
    note_compression(dataset);
    return std::pair(dataset.float_type(), dataset.shape());
  };
  header.q = check("q", {heads, queries, info_.head_dim}, "[Hq, M, d]").first;
  header.k = check("k", {kv_heads, info_.total_len, info_.head_dim}, "[Hkv, N, d]").first;
  const auto [v_type, v_shape] = check("v", {kv_heads, info_.total_len, -1}, "[Hkv, N, dv]");
  header.v = v_type;
  header.value_dim = v_shape[2];
  header.wo = check("wo", {heads, header.value_dim, info_.hidden_size}, "[Hq, dv, D]").first;
  if (file_.exists(path + "/residual_norm") != info_.has_residual_norm)
    file_.fail(path + "/residual_norm", info_.has_residual_norm ? "missing" : "unexpected", {},
               "residual_norm in all layers of the file or in none");
  if (info_.has_residual_norm) check("residual_norm", {queries}, "[M]");
  header.has_sink = file_.exists(path + "/attention_sink");
  if (header.has_sink) check("attention_sink", {heads}, "[Hq]");
  const auto checked = std::ssize(info_.check_position);
  header.has_check = checked > 0 && file_.exists(path + "/check_output");
  if (header.has_check) check("check_output", {heads, checked, header.value_dim}, "[Hq, R, dv]");
  header.has_added = checked > 0 && file_.exists(path + "/check_added");
  if (header.has_added) check("check_added", {checked, info_.hidden_size}, "[R, D]");
  check_path(path, header);
  for (const ProbeInfo& probe : info_.probes) check_probe(path, header, probe);
  return header;
}

/// Checks all that stands between heads and stream: gains of the right shape, a root for every
/// norm.
void TraceReader::check_path(const std::string& path, LayerHeader& header) const {
  const int64_t heads = info_.num_query_heads;
  const auto queries = std::ssize(info_.query_position);
  if (file_.exists(path + "/gate")) {
    const auto gate = file_.dataset(path + "/gate");
    gate.expect_shape({heads, queries, -1}, "[Hq, M, dv] or [Hq, M, 1]");
    if (gate.shape()[2] != header.value_dim && gate.shape()[2] != 1)
      gate.fail("wrong shape", h5::shape_text(gate.shape()), "[Hq, M, dv] or [Hq, M, 1]");
    gate.float_type();
    header.gate_width = gate.shape()[2];
  }
  const auto norm = [&](const std::string& name, const h5::Shape& shape, const char* letters,
                        bool& has_gain, std::optional<double>& eps) {
    has_gain = file_.exists(path + "/" + name + "_gain");
    eps = file_.real_attribute(path, (name + "_eps").c_str());
    if (eps && (!std::isfinite(*eps) || *eps < 0))
      file_.fail(path + " attribute " + name + "_eps", "out of range", std::to_string(*eps),
                 "0 or a positive number");
    const auto floats = [&](const std::string& what, const h5::Shape& of, const char* as) {
      const auto data = file_.dataset(path + "/" + name + what);
      data.expect_shape(of, as);
      data.float_type();
    };
    if (has_gain || eps) floats("_gain", shape, letters);
    if (eps) floats("_rms", {queries}, "[M]");
  };
  norm("inner", {heads, header.value_dim}, "[Hq, dv]", header.has_inner_gain, header.inner_eps);
  norm("outer", {info_.hidden_size}, "[D]", header.has_outer_gain, header.outer_eps);
}

OutputPath TraceReader::read_path(const std::string& path, const LayerHeader& header) const {
  OutputPath read;
  if (header.gate_width > 0) read.gate = read_tensor(path + "gate");
  const auto norm = [&](const std::string& name, const std::optional<double>& eps, PathNorm& to) {
    to.gain = read_vector(path + name + "_gain");
    if (!eps) return;
    to.divides = true;
    to.eps = *eps;
    to.rms = read_vector(path + name + "_rms");
    const auto bad = std::ranges::find_if(to.rms, [](float root) { return root <= 0; });
    if (bad != to.rms.end())
      file_.fail(path + name + "_rms", "out of range",
                 std::to_string(*bad) + " at index " + std::to_string(bad - to.rms.begin()),
                 "positive numbers");
  };
  if (header.has_inner_gain) norm("inner", header.inner_eps, read.inner);
  if (header.has_outer_gain) norm("outer", header.outer_eps, read.outer);
  return read;
}

const LayerHeader& TraceReader::header(int layer) const {
  const auto found = std::lower_bound(info_.layers.begin(), info_.layers.end(), layer);
  if (found == info_.layers.end() || *found != layer)
    file_.fail(layer_path(layer), "missing", {}, "a layer that the trace has");
  return headers_[found - info_.layers.begin()];
}

Tensor TraceReader::read_tensor(const std::string& object) const {
  const auto dataset = file_.dataset(object);
  const h5::Shape& shape = dataset.shape();
  Tensor tensor(dataset.float_type(), {shape.at(0), shape.at(1), shape.at(2)});
  dataset.read_raw(tensor.data());
  check_finite(dataset, tensor.type(), tensor.data(), tensor.count());
  return tensor;
}

std::vector<float> TraceReader::read_vector(const std::string& object) const {
  const auto dataset = file_.dataset(object);
  std::vector<float> values = dataset.read_floats();
  check_finite(dataset, ElementType::float32, values.data(), std::ssize(values));
  return values;
}

LayerTrace TraceReader::read_layer(int layer, bool with_check, const std::set<int>& asked) const {
  const LayerHeader& known = header(layer);
  const std::string path = layer_path(layer) + "/";
  LayerTrace trace;
  trace.info = &info_;
  trace.layer = layer;
  trace.scale = known.scale;
  trace.softcap = known.softcap;
  trace.sliding_window = known.sliding_window;
  trace.q = read_tensor(path + "q");
  trace.k = read_tensor(path + "k");
  trace.v = read_tensor(path + "v");
  trace.wo = read_tensor(path + "wo");
  if (info_.has_residual_norm) trace.residual_norm = read_vector(path + "residual_norm");
  if (known.has_sink) trace.attention_sink = read_vector(path + "attention_sink");
  if (with_check && known.has_check) trace.check_output = read_vector(path + "check_output");
  if (with_check && known.has_added) trace.check_added = read_vector(path + "check_added");
  trace.path = read_path(path, known);
  set_usual_output(trace);
  trace.probes.resize(info_.probes.size());
  std::set<int> probes = asked;
  if (later_ >= 0) probes.insert(later_);
  for (const int number : probes)
    trace.probes[number] = read_probe(path + "probes/" + info_.probes[number].name + "/",
                                      with_check, info_.probes[number]);
  if (later_ >= 0) return probe_layer(trace, later_info_, later_, 0, true);
  return trace;
}

const std::string& TraceReader::digest() const {
  if (digest_.empty()) digest_ = file_digest(file_.path());
  return digest_;
}

}  // namespace kvsim
