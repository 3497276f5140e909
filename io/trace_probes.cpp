// Probes in a trace file: trace-format.md 7.

#include "io/trace_reader.hpp"

namespace kvsim {
namespace {

/// The parts by where they begin; without `part_begin` one.
std::vector<ProbePart> parts_of(const h5::InputFile& file, const std::string& path,
                                int64_t tokens) {
  std::vector<int64_t> begins = {0};
  if (file.exists(path + "/part_begin")) {
    const auto data = file.dataset(path + "/part_begin");
    data.expect_shape({-1}, "[C]");
    begins = data.read_integers();
    check_range(data, begins, 0, tokens - 1);
    check_ascending(data, begins, {0, std::ssize(begins)});
    if (begins.empty() || begins.front() != 0)
      data.fail("the first part does not begin with the first token",
                begins.empty() ? "no part" : std::to_string(begins.front()), "0");
  }
  std::vector<ProbePart> parts;
  for (size_t c = 0; c < begins.size(); ++c)
    parts.push_back({{begins[c], c + 1 < begins.size() ? begins[c + 1] : tokens}, {}});
  return parts;
}

/// Reads `read_begin` and `read_end`, both or none.
void read_reads(const h5::InputFile& file, const std::string& path, int64_t prompt_len,
                std::vector<ProbePart>& parts) {
  if (!file.exists(path + "/read_begin") && !file.exists(path + "/read_end")) return;
  const auto begin_data = file.dataset(path + "/read_begin");
  const auto end_data = file.dataset(path + "/read_end");
  const auto count = std::ssize(parts);
  begin_data.expect_shape({count}, "[C]");
  end_data.expect_shape({count}, "[C]");
  const auto begins = begin_data.read_integers(), ends = end_data.read_integers();
  check_range(begin_data, begins, 0, prompt_len);
  for (size_t c = 0; c < parts.size(); ++c) {
    if (ends[c] < begins[c] || ends[c] > prompt_len)
      end_data.fail("out of range", std::to_string(ends[c]) + " at index " + std::to_string(c),
                    std::to_string(begins[c]) + " to " + std::to_string(prompt_len));
    parts[c].reads = {begins[c], ends[c]};
  }
}

}  // namespace

void TraceReader::read_probes() {
  if (!file_.exists("probes")) return;
  for (const std::string& name : file_.children("probes")) {
    const std::string path = "probes/" + name, fault = span_name_fault(name);
    if (!fault.empty())
      file_.fail(path, "bad probe name", fault,
                 "a name without + , = or white space that is no range");
    ProbeInfo probe;
    probe.name = name;
    const auto positions = file_.dataset(path + "/position");
    positions.expect_shape({-1}, "[P]");
    probe.position = positions.read_integers();
    if (probe.position.empty()) positions.fail("no tokens", "an empty dataset", "at least one");
    check_range(positions, probe.position, info_.prompt_len, int64_t{1} << 40);
    probe.parts = parts_of(file_, path, probe.tokens());
    for (const ProbePart& part : probe.parts)
      check_ascending(positions, probe.position, part.tokens);
    read_reads(file_, path, info_.prompt_len, probe.parts);
    probe.answer_begin = integer_in(path, "answer_begin", 1, probe.tokens() - 1).value_or(0);
    if (file_.exists(path + "/token_text"))
      file_.dataset(path + "/token_text").expect_shape({probe.tokens()}, "[P]");
    if (file_.exists(path + "/token_id"))
      file_.dataset(path + "/token_id").expect_shape({probe.tokens()}, "[P]");
    if (file_.exists(path + "/check_token")) {
      const auto checked = file_.dataset(path + "/check_token");
      checked.expect_shape({-1}, "[R]");
      probe.check_token = checked.read_integers();
      check_range(checked, probe.check_token, 0, probe.tokens() - 1);
      check_ascending(checked, probe.check_token, {0, std::ssize(probe.check_token)});
    }
    info_.probes.push_back(std::move(probe));
  }
  std::ranges::sort(info_.probes, {}, &ProbeInfo::name);
}

/// Tensors that a layer must hold of a probe: the first layer says which of the optional ones there
/// are.
void TraceReader::check_probe(const std::string& layer_path, const LayerHeader& header,
                              const ProbeInfo& probe) {
  const std::string path = layer_path + "/probes/" + probe.name;
  const auto there = [&](const char* name) { return file_.exists(path + "/" + name); };
  ProbeInfo& known = info_.probes[info_.find_probe(probe.name)];
  if (headers_.empty()) {
    known.has_keys = there("k");
    known.has_residual_norm = there("residual_norm");
    known.has_input_norm = there("input_norm");
    known.has_output_gradient = there("output_gradient");
  }
  const auto check =
      [&](const char* name, bool wanted, const h5::Shape& shape, const char* letters) {
    if (!wanted && there(name))
      file_.fail(path + "/" + name, "unexpected", {}, "in all layers of the file or in none");
    if (!wanted) return;
    const auto dataset = file_.dataset(path + "/" + name);
    dataset.expect_shape(shape, letters);
    dataset.float_type();
    note_compression(dataset);
  };
  const int64_t heads = info_.num_query_heads, kv_heads = info_.num_kv_heads;
  const int64_t tokens = probe.tokens(), checked = std::ssize(probe.check_token);
  check("q", true, {heads, tokens, info_.head_dim}, "[Hq, P, d]");
  check("k", known.has_keys, {kv_heads, tokens, info_.head_dim}, "[Hkv, P, d]");
  check("v", known.has_keys, {kv_heads, tokens, header.value_dim}, "[Hkv, P, dv]");
  check("gate", header.gate_width > 0, {heads, tokens, header.gate_width}, "[Hq, P, dv or 1]");
  check("residual_norm", known.has_residual_norm, {tokens}, "[P]");
  check("input_norm", known.has_input_norm, {tokens}, "[P]");
  check("output_gradient", known.has_output_gradient, {tokens}, "[P]");
  check("check_output", checked > 0, {heads, checked, header.value_dim}, "[Hq, R, dv]");
}

ProbeLayer TraceReader::read_probe(const std::string& path, bool with_check,
                                   const ProbeInfo& probe) const {
  ProbeLayer layer;
  layer.q = read_tensor(path + "q");
  if (probe.has_keys) {
    layer.k = read_tensor(path + "k");
    layer.v = read_tensor(path + "v");
  }
  if (file_.exists(path + "gate")) layer.gate = read_tensor(path + "gate");
  if (probe.has_residual_norm) layer.residual_norm = read_vector(path + "residual_norm");
  if (probe.has_input_norm) layer.input_norm = read_vector(path + "input_norm");
  if (probe.has_output_gradient) layer.output_gradient = read_vector(path + "output_gradient");
  if (with_check && !probe.check_token.empty())
    layer.check_output = read_vector(path + "check_output");
  return layer;
}

/// The probe whose tokens take the place of the later ones: one part that follows the prompt at
/// once, with its own keys (trace-format.md 7).
void TraceReader::put_later(const std::string& name) {
  later_ = info_.find_probe(name);
  const std::string path = "probes/" + name;
  if (later_ < 0) {
    std::string known;
    for (const ProbeInfo& probe : info_.probes) known += (known.empty() ? "" : ", ") + probe.name;
    bad_data({"no such probe", info_.path, known.empty() ? "no probes" : "probes " + known,
              "a probe " + name + ", whose tokens take the place of the later ones",
              "kvsim capture --probe writes probes"});
  }
  const ProbeInfo& probe = info_.probes[later_];
  const std::string use = " that takes the place of the later tokens";
  if (probe.parts.size() != 1)
    file_.fail(path + "/part_begin", "several parts", std::to_string(probe.parts.size()) + " parts",
               "a probe of one part" + use);
  if (!probe.has_keys)
    file_.fail(path, "no keys and values", {}, "those of the probe's tokens in every layer" + use);
  if (probe.position.back() != info_.prompt_len + probe.tokens() - 1)
    file_.fail(path + "/position", "tokens do not follow the prompt at once",
               "the last at " + std::to_string(probe.position.back()),
               std::to_string(info_.prompt_len + probe.tokens() - 1) + use);
  later_info_ = probe_info(info_, later_, 0, true);
  has_token_ids_ = has_token_ids_ && file_.exists(path + "/token_id");
}

}  // namespace kvsim
