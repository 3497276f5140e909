#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "io/hdf5.hpp"
#include "io/side_files.hpp"
#include "io/trace_reader.hpp"
#include "run/study/study.hpp"

namespace kvsim::cli::inspect_command {
namespace {

using Json = nlohmann::ordered_json;

std::string size_text(int64_t bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes);
  size_t unit = 0;
  for (; size >= 1024 && unit + 1 < std::size(units); ++unit) size /= 1024;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} {}", size, units[unit]);
}

void print_field(const char* name, const std::string& value) {
  fmt::print("{:<15}{}\n", name, printable(value));
}

/// "repeat, 700 tokens in 1 part that read [0, 690) again, with keys, residual_norm"
std::string probe_text(const ProbeInfo& probe) {
  std::string text = fmt::format("{}, {} in {}", probe.name, counted(probe.tokens(), "token"),
                                 counted(std::ssize(probe.parts), "part"));
  const Range reads{probe.parts.front().reads.begin, probe.parts.back().reads.end};
  if (reads.size() > 0) text += fmt::format(" that read [{}, {}) again", reads.begin, reads.end);
  if (probe.has_keys) text += ", with keys";
  if (probe.has_residual_norm) text += ", residual_norm";
  if (probe.has_input_norm) text += ", input_norm";
  if (probe.has_output_gradient) text += ", output_gradient";
  if (!probe.check_token.empty()) text += ", " + counted(std::ssize(probe.check_token), "output");
  return text;
}

/// Of each kind of rotation its layers: "4 pairs, half, from dimension 8: layers 0, 2".
std::string rope_text(const TraceInfo& info) {
  std::map<std::string, std::string> layers;
  for (const int layer : info.layers) {
    const Rotation& rope = info.rotation(layer);
    const bool turns = std::ranges::any_of(rope.inv_freq, [](double x) { return x != 0; });
    std::string text = fmt::format("{} frequencies, {}", rope.pairs(),
                                   rope.interleaved ? "interleaved" : "half");
    if (rope.first > 0) text += fmt::format(", from dimension {}", rope.first);
    if (rope.attention_factor != 1) text += fmt::format(", factor {:.4g}", rope.attention_factor);
    if (rope.pairs() == 0) text = "no frequencies";
    if (rope.pairs() > 0 && !turns) text = "no positions";
    std::string& list = layers[text];
    list += (list.empty() ? "" : ", ") + std::to_string(layer);
  }
  if (layers.size() == 1) {
    const std::string& only = layers.begin()->first;
    return only + (info.rope_missing.empty() ? "" : ": " + info.rope_missing);
  }
  std::string text;
  for (const auto& [kind, list] : layers)
    text += (text.empty() ? "" : "; ") + kind + ": layers " + list;
  return text;
}

/// Ascending positions as half-open runs.
std::vector<Range> runs_of(const std::vector<int64_t>& positions) {
  std::vector<Range> runs;
  for (const int64_t position : positions) {
    if (runs.empty() || runs.back().end != position) runs.push_back({position, position});
    ++runs.back().end;
  }
  return runs;
}

/// "0-4055, 4200" for runs, a few of them.
std::string runs_text(const std::vector<int64_t>& positions) {
  constexpr size_t kMost = 6;
  const std::vector<Range> runs = runs_of(positions);
  std::string text;
  for (size_t r = 0; r < runs.size(); ++r) {
    if (r == kMost) return text + ", ...";
    text += (r > 0 ? ", " : "") + std::to_string(runs[r].begin);
    if (runs[r].size() > 1) text += "-" + std::to_string(runs[r].end - 1);
  }
  return text.empty() ? "none" : text;
}

void print_run(const TraceReader& trace) {
  const TraceInfo& info = trace.info();
  print_field("trace", info.path);
  print_field("size", size_text(trace.file_size()));
  print_field("digest", trace.digest());
  print_field("model", info.model);
  print_field("heads",
              fmt::format("{}, {}{}", counted(info.num_query_heads, "query head"),
                          counted(info.num_kv_heads, "KV head"),
                          info.group_size() == 1
                              ? ""
                              : fmt::format(" ({} query heads share one)", info.group_size())));
  print_field("sizes", fmt::format("head_dim {}, hidden_size {}", info.head_dim, info.hidden_size));
  if (info.latent_size > 0)
    print_field("latent cache", fmt::format("{} numbers a token and layer", info.latent_size));
  print_field("prompt", fmt::format("{} entries (n)", info.prompt_len));
  print_field("later",
              fmt::format("{}, {} in all (N)", counted(info.total_len - info.prompt_len, "token"),
                          info.total_len));
  print_field("queries", fmt::format("{} stored: {}", info.query_position.size(),
                                     runs_text(info.query_position)));
  print_field("checks", info.check_position.empty()
                            ? "none"
                            : fmt::format("{} recorded outputs", info.check_position.size()));
  print_field("residual norm", info.has_residual_norm ? "yes" : "no");
  print_field("tokens", trace.has_token_text() ? (trace.has_token_ids() ? "ids and text" : "text")
                                               : (trace.has_token_ids() ? "ids" : "none"));
  print_field("rope", rope_text(info));
  for (const ProbeInfo& probe : info.probes) print_field("probe", probe_text(probe));
  for (const Span& span : info.spans)
    print_field("span", fmt::format("{} [{}, {}), {}", span.name, span.begin, span.end,
                                    counted(span.end - span.begin, "token")));
}

std::string types_text(const LayerHeader& layer) {
  std::string text = element_name(layer.q);
  for (const ElementType type : {layer.k, layer.v, layer.wo})
    if (text.find(element_name(type)) == std::string::npos)
      text += std::string("+") + element_name(type);
  return text;
}

/// "  gate, norm behind W_O": what else stands between heads and stream; empty: nothing.
std::string path_text(const LayerHeader& layer) {
  std::string text;
  const auto add = [&](bool there, const char* what) {
    if (there) text += (text.empty() ? "  " : ", ") + std::string(what);
  };
  add(layer.gate_width > 0, "gate");
  add(layer.has_inner_gain, layer.inner_eps ? "norm before W_O" : "gain before W_O");
  add(layer.has_outer_gain, layer.outer_eps ? "norm behind W_O" : "gain behind W_O");
  return text;
}

void print_layers(const TraceReader& trace) {
  const TraceInfo& info = trace.info();
  fmt::print("\nlayers         {} of {}\n", info.layers.size(), info.num_layers);
  fmt::print("layer  type       value_dim     scale  softcap  window  sink\n");
  const auto or_dash = [](bool there, const std::string& text) { return there ? text : "-"; };
  for (const LayerHeader& layer : trace.headers())
    fmt::print("{:5}  {:<9}  {:>9}  {:8.5g}  {:>7}  {:>6}  {:>4}{}{}\n", layer.layer,
               types_text(layer), layer.value_dim, layer.scale,
               or_dash(layer.softcap > 0, fmt::format("{:g}", layer.softcap)),
               or_dash(layer.sliding_window > 0, std::to_string(layer.sliding_window)),
               layer.has_sink ? "yes" : "-", path_text(layer),
               layer.sliding_window > 0 && layer.sliding_window < info.total_len
                   ? "  not compressed, not measured: its window is shorter than the trace"
                   : "");
}

/// Names joined by commas, on lines of about 96 columns that start with `indent`.
void print_wrapped(const std::string& indent, const std::vector<std::string>& names) {
  constexpr size_t kWidth = 96;
  std::string line;
  for (const std::string& name : names) {
    if (!line.empty() && indent.size() + line.size() + name.size() + 2 > kWidth) {
      fmt::print("{}{},\n", indent, line);
      line.clear();
    }
    line += (line.empty() ? "" : ", ") + name;
  }
  if (!line.empty()) fmt::print("{}{}\n", indent, line);
}

void print_uses(const TraceReader& trace) {
  for (const auto& [by, uses] : trace_uses(trace)) {
    // Names that are served without conditions share lines; the others have something to say.
    std::vector<std::string> plain;
    size_t width = 0;
    for (const TraceUse& use : uses) {
      if (use.served && use.detail.empty())
        plain.push_back(use.name);
      else
        width = std::max(width, use.name.size());
    }
    fmt::print("\nenough for, by {}\n", by);
    print_wrapped("  yes  ", plain);
    for (const TraceUse& use : uses)
      if (!use.served || !use.detail.empty())
        fmt::print("  {:<3}  {:<{}}  {}\n", use.served ? "yes" : "no", use.name, width, use.detail);
  }
}

/// Answer of a replay about each policy before any work: the record, or why it is refused.
struct PolicyAnswer {
  std::string typed;
  std::string record;  ///< canonical; empty where the text is none
  std::string fault;   ///< empty where the trace serves it
};

std::vector<PolicyAnswer> policy_answers(const TraceReader& trace, const Values& values) {
  const std::vector<Budget> budgets = budgets_of(values, {"0.5"});
  std::vector<PolicyAnswer> answers;
  for (const std::string& typed : texts(values, "policy")) {
    PolicyAnswer answer{typed, "", ""};
    try {
      StudyOptions options;
      options.records = {Record::parse(typed)};
      answer.record = options.records.front().canonical();
      options.budgets = budgets;
      options.layers = trace.info().layers;
      plan_study(trace, options);
    } catch (const Error& error) {
      if (is_function(typed)) throw;  // none is called here
      answer.fault = error.what();
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

Json layer_json(const LayerHeader& layer) {
  return {{"layer", layer.layer},
          {"types",
           {{"q", element_name(layer.q)},
            {"k", element_name(layer.k)},
            {"v", element_name(layer.v)},
            {"wo", element_name(layer.wo)}}},
          {"value_dim", layer.value_dim},
          {"attention_scale", layer.scale},
          {"softcap", layer.softcap > 0 ? Json(layer.softcap) : Json()},
          {"sliding_window", layer.sliding_window > 0 ? Json(layer.sliding_window) : Json()},
          {"attention_sink", layer.has_sink},
          {"check_output", layer.has_check},
          {"check_added", layer.has_added},
          {"gate", layer.gate_width > 0 ? Json(layer.gate_width) : Json()},
          {"inner_gain", layer.has_inner_gain},
          {"inner_eps", layer.inner_eps ? Json(*layer.inner_eps) : Json()},
          {"outer_gain", layer.has_outer_gain},
          {"outer_eps", layer.outer_eps ? Json(*layer.outer_eps) : Json()}};
}

void print_json(const TraceReader& trace, const std::vector<PolicyAnswer>& answers) {
  const TraceInfo& info = trace.info();
  Json document = {{"trace", h5::repaired_utf8(info.path)},
                   {"bytes", trace.file_size()},
                   {"digest", trace.digest()},
                   {"model", info.model},
                   {"num_layers", info.num_layers},
                   {"num_query_heads", info.num_query_heads},
                   {"num_kv_heads", info.num_kv_heads},
                   {"head_dim", info.head_dim},
                   {"hidden_size", info.hidden_size},
                   {"latent_size", info.latent_size > 0 ? Json(info.latent_size) : Json()},
                   {"prompt_len", info.prompt_len},
                   {"total_len", info.total_len},
                   {"query_runs", Json::array()},
                   {"check_position", info.check_position},
                   {"residual_norm", info.has_residual_norm},
                   {"token_text", trace.has_token_text()},
                   {"token_ids", trace.has_token_ids()},
                   {"spans", Json::array()},
                   {"probes", Json::array()},
                   {"layers", Json::array()},
                   {"uses", Json::array()}};
  for (const Range& run : runs_of(info.query_position))
    document["query_runs"].push_back({run.begin, run.end});
  for (const Span& span : info.spans)
    document["spans"].push_back({{"name", span.name}, {"begin", span.begin}, {"end", span.end}});
  for (const ProbeInfo& probe : info.probes) {
    Json parts = Json::array();
    for (const ProbePart& part : probe.parts)
      parts.push_back({{"tokens", {part.tokens.begin, part.tokens.end}},
                       {"reads", {part.reads.begin, part.reads.end}}});
    document["probes"].push_back({{"name", probe.name},
                                  {"tokens", probe.tokens()},
                                  {"parts", parts},
                                  {"keys", probe.has_keys},
                                  {"residual_norm", probe.has_residual_norm},
                                  {"input_norm", probe.has_input_norm},
                                  {"output_gradient", probe.has_output_gradient},
                                  {"check_token", probe.check_token}});
  }
  for (const LayerHeader& layer : trace.headers()) document["layers"].push_back(layer_json(layer));
  for (const auto& [by, uses] : trace_uses(trace))
    for (const TraceUse& use : uses)
      document["uses"].push_back(
          {{"group", by}, {"name", use.name}, {"served", use.served}, {"detail", use.detail}});
  for (const PolicyAnswer& answer : answers)
    document["policies"].push_back({{"policy", answer.typed},
                                    {"record", answer.record},
                                    {"served", answer.fault.empty()},
                                    {"fault", answer.fault}});
  fmt::print("{}\n", printable_json(document.dump(2)));
}

std::vector<std::string> names(const Dataset& results, const char* variable) {
  return results.has(variable) ? results.texts(variable) : std::vector<std::string>();
}

/// Of a file of results: program, command, trace, policies, budgets and what was measured.
void print_results(const std::string& path, int64_t bytes, const Dataset& results) {
  const auto at = [&](const char* name) {  // an attribute as text; empty when absent
    const AttributeValue* found = results.attribute(name);
    if (found == nullptr) return std::string();
    return std::visit([](const auto& value) { return fmt::format("{}", value); }, *found);
  };
  const auto field = [](const char* name, const std::string& value) {
    if (!value.empty()) print_field(name, value);
  };
  field("results", path);
  field("size", size_text(bytes));
  field("what", at("title"));
  std::string program = "kvsim " + at("kvsim_version");
  if (!at("git_commit").empty()) program += " (commit " + at("git_commit") + ")";
  field("program", program);
  field("format",
        "version " + (at(kResultsVersionAttribute).empty() ? std::string("1")
                                                           : at(kResultsVersionAttribute)));
  field("command", at("history"));
  field("trace", at("trace"));
  field("digest", at("trace_digest"));
  field("later", at("later"));
  field("model", at("model"));
  if (!at("prompt_len").empty()) field("prompt", at("prompt_len") + " entries (n)");
  if (results.has_dimension("step")) field("steps", counted(results.size("step"), "later token"));
  if (results.has_dimension("layer"))
    field("layers", fmt::format("{} of {}", results.size("layer"), at("num_layers")));
  field("budgets", fmt::format("{}", fmt::join(names(results, "budget_label"), ", ")));
  field("equal bytes", at("equal_bytes"));
  fmt::print("\npolicies\n");
  for (const std::string& policy : names(results, "policy"))
    fmt::print("  {}\n", printable(policy));
  fmt::print("\nmeasures\n");
  std::vector<std::string> measures;
  for (const Variable& variable : results.variables())
    if (!variable.is_coordinate()) measures.push_back(printable(variable.name));
  print_wrapped("  ", measures);
  std::istringstream idle(at(kIdleSettings));
  if (!idle.str().empty()) fmt::print("\nwithout effect\n");
  for (std::string line; std::getline(idle, line);) fmt::print("  {}\n", printable(line));
}

void print_results_json(const std::string& path, int64_t bytes, const Dataset& results) {
  Json document = {{"results", h5::repaired_utf8(path)},
                   {"bytes", bytes},
                   {"attributes", Json::object()},
                   {"policies", names(results, "policy")},
                   {"budgets", names(results, "budget_label")},
                   {"dimensions", Json::object()},
                   {"variables", Json::array()}};
  for (const Attribute& attribute : results.attributes())
    std::visit([&](const auto& value) { document["attributes"][attribute.name] = value; },
               attribute.value);
  for (const Dimension& dimension : results.dimensions())
    document["dimensions"][dimension.name] = dimension.size;
  for (const Variable& variable : results.variables())
    document["variables"].push_back({{"name", variable.name},
                                     {"dims", variable.dims},
                                     {"units", variable.units},
                                     {"long_name", variable.long_name}});
  fmt::print("{}\n", printable_json(document.dump(2)));
}

int run(const Values& values) {
  const std::string path = text(values, "file");
  if (const h5::InputFile file(path, "trace or results file");
      !file.text_attribute("/", "format") && file.text_attribute("/", "kvsim_version")) {
    if (has(values, "policy") || has(values, "budget"))
      usage_error(
          {"a replay reads traces", path, "results of kvsim with --policy or --budget", "a trace"});
    (has(values, "json") ? print_results_json : print_results)(path, file.size(),
                                                               read_results(path));
    return kDone;
  }
  const TraceReader trace(path);
  for (const std::string& warning : trace.warnings()) note(warning);
  const std::vector<PolicyAnswer> answers = policy_answers(trace, values);
  if (has(values, "json")) {
    print_json(trace, answers);
    return kDone;
  }
  print_run(trace);
  print_layers(trace);
  print_uses(trace);
  if (!answers.empty()) fmt::print("\nenough for, by policy\n");
  for (const PolicyAnswer& answer : answers)
    fmt::print("  {}  {}\n", answer.fault.empty() ? "yes" : "no ",
               printable(answer.fault.empty() ? answer.typed : answer.fault));
  return kDone;
}

const bool registered = register_command(
    {.name = "inspect",
     .summary = "show what a trace or a results file holds",
     .arguments = {{.name = "file", .meaning = "a trace, or results of kvsim"}},
     .description = "Of a trace also what it is enough for, and with --policy whether a replay "
                    "would take each of\nthem, at the budgets given (0.5), and if not, why. Of "
                    "results the program, the command, trace,\npolicies, budgets and measures.",
     .options = {{"policy", "RECORD", kRecords, true}, {"budget"}, {"json"}},
     .examples = {"kvsim inspect data/sample.h5",
                  "kvsim inspect data/sample.h5 --policy snapkv,window=600 --json"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::inspect_command
