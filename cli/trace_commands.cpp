#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "io/temporary_file.hpp"
#include "io/trace_reader.hpp"
#include "run/trace/attention_reference.hpp"
#include "run/trace/synth.hpp"

namespace kvsim::cli::trace_commands {
namespace {

ElementType parse_type(const std::string& name) {
  for (const ElementType type : {ElementType::float32, ElementType::float16, ElementType::bfloat16})
    if (name == element_name(type)) return type;
  usage_error({"unknown type", "--dtype", name, "float32, float16 or bfloat16"});
}

int64_t parse_queries(const std::string& typed) {
  if (typed.empty() || typed == "all") return -1;
  if (!typed.starts_with("window:"))
    usage_error({"unknown choice", "--queries", typed, "window:M or all"});
  return parse_count(typed.substr(7), "--queries", 0, int64_t{1} << 32);
}

std::vector<Span> parse_spans(const Values& values, int64_t prompt) {
  if (text(values, "spans") == "none") return {};
  if (!has(values, "spans")) {
    const int64_t eighth = prompt / 8;
    if (eighth == 0) return {};
    return {{"defense", eighth, 2 * eighth}, {"directive", 2 * eighth, 3 * eighth}};
  }
  std::vector<Span> spans;
  int64_t last_end = 0;
  for (const std::string& item : split_list(text(values, "spans"), "--spans")) {
    const size_t colon = item.rfind(':');
    const size_t dash = item.rfind('-');
    const bool parts = colon != std::string::npos && dash != std::string::npos && dash > colon;
    if (!parts) usage_error({"bad span", "--spans", item, "NAME:BEGIN-END"});
    Span span{item.substr(0, colon), 0, 0};
    span.begin = parse_count(item.substr(colon + 1, dash - colon - 1), "--spans", 0, prompt);
    if (span.begin < last_end)
      usage_error({"spans overlap, or are out of order", "--spans", item,
                   "one that begins at " + std::to_string(last_end) + " or later"});
    span.end = parse_count(item.substr(dash + 1), "--spans", span.begin, prompt);
    last_end = span.end;
    const bool twice = std::ranges::count(spans, span.name, &Span::name) > 0;
    if (twice || !span_name_fault(span.name).empty())
      usage_error({twice ? "span name used twice" : "bad span name", "--spans", span.name});
    spans.push_back(span);
  }
  return spans;
}

SynthConfig read_config(const Values& values) {
  constexpr int64_t kMost = int64_t{1} << 24;
  SynthConfig config;
  config.prompt = count_of(values, "prompt", config.prompt, 1, kMost);
  config.steps = count_of(values, "steps", config.steps, 0, kMost);
  config.num_layers = static_cast<int>(count_of(values, "num-layers", config.num_layers, 1, 10000));
  config.heads = static_cast<int>(count_of(values, "heads", config.heads, 1, 4096));
  config.kv_heads = static_cast<int>(
      count_of(values, "kv-heads", std::min(config.kv_heads, config.heads), 1, config.heads));
  if (config.heads % config.kv_heads != 0)
    usage_error({"not a divisor of --heads", "--kv-heads", std::to_string(config.kv_heads),
                 "a divisor of " + std::to_string(config.heads)});
  config.head_dim = count_of(values, "head-dim", config.head_dim, 4, 65536);
  config.value_dim = count_of(values, "value-dim", config.head_dim, 1, 65536);
  config.hidden = count_of(values, "hidden", config.hidden, 1, 1 << 20);
  if (has(values, "dtype")) config.type = parse_type(text(values, "dtype"));
  config.query_window = parse_queries(text(values, "queries"));
  if (config.query_window == 0 && config.steps == 0)
    usage_error(
        {"no query is left to store", "--queries", "", "window:1 or more, or --steps above 0"});
  config.spans = parse_spans(values, config.prompt);
  config.softcap = real_of(values, "softcap", 0, 1e-3, 1e6);
  config.sliding_window = count_of(values, "sliding-window", 0, 1, kMost);
  config.sink = has(values, "sink");
  config.probe_chunk = count_of(values, "probe", 0, 1, kMost);
  config.seed = seed(values);
  return config;
}

int run_synth(const Values& values) {
  if (!has(values, "out")) usage_error({"missing -o", "synth", "", "kvsim synth -o TRACE"});
  const SynthConfig config = read_config(values);
  const std::string path = text(values, "out");
  check_target(path, has(values, "overwrite"));
  write_synth(config, path);
  note(path + " written");
  return kDone;
}

const bool synth_registered = register_command(
    {.name = "synth",
     .summary = "write a synthetic trace with known properties",
     .description =
         "Keys and queries are noise with planted structure, the same in every layer: a few heavy\n"
         "hitters that every query attends to; a hot spot that drifts backwards through the\n"
         "prompt during the later steps (even query heads; odd ones look at their own\n"
         "neighbourhood); and spikes: later steps that suddenly attend to one entry that nothing\n"
         "attended to before. The trace's `source` attribute lists heavy hitters and spikes. The\n"
         "same options and seed give the same numbers.",
     .options = {{"prompt", "N", "prompt entries n (default: 1024)"},
                 {"steps", "N", "later tokens (default: 128)"},
                 {"num-layers", "N", "layers (default: 2)"},
                 {"heads", "N", "query heads (default: 4)"},
                 {"kv-heads", "N", "KV heads (default: 2)"},
                 {"head-dim", "N", "size of queries and keys, at least 4 (default: 64)"},
                 {"value-dim", "N", "size of values (default: head-dim)"},
                 {"hidden", "N", "width after the output projection (default: 256)"},
                 {"dtype", "TYPE", "float32, float16 or bfloat16 (default: float16)"},
                 {"queries", "window:M|all",
                  "prompt queries to store: the last M or all (default: all)"},
                 {"spans", "LIST",
                  "NAME:BEGIN-END,... half-open, or none (default: defense and "
                  "directive, an eighth of the prompt each)"},
                 {"softcap", "C", "logits become C*tanh(x/C)"},
                 {"sliding-window", "W", "odd layers see the last W positions only"},
                 {"sink", "", "every head has an attention sink"},
                 {"probe", "CHUNK",
                  "a probe named repeat reads the prompt again, CHUNK tokens at a time"},
                 {"seed"},
                 {"out,o", "FILE", "the trace file to write"},
                 {"overwrite"}},
     .examples = {"kvsim synth -o synthetic.h5 --prompt 2048 --steps 128 --seed 1",
                  "kvsim synth -o narrow.h5 --heads 8 --kv-heads 1 --value-dim 32 --dtype float32"},
     .run = run_synth});

/// What passes unless --tolerance says otherwise.
double usual_tolerance(const TraceReader& trace) {
  for (const LayerHeader& layer : trace.headers())
    for (const ElementType type : {layer.q, layer.k, layer.v, layer.wo})
      if (type != ElementType::float32) return 1e-2;
  return 1e-4;
}

void print_json(const std::vector<LayerCheck>& checks, double limit) {
  nlohmann::ordered_json document;
  document["tolerance"] = limit;
  for (const LayerCheck& check : checks) {
    nlohmann::ordered_json one = {{"layer", check.layer}};
    if (!check.probe.empty()) one["probe"] = check.probe;
    one["error"] = check.error;
    if (check.head == LayerCheck::kAdded)
      one["added"] = true;
    else
      one["head"] = check.head;
    one["passed"] = check.error <= limit;
    document["layers"].push_back(one);
  }
  fmt::print("{}\n", printable_json(document.dump(2)));
}

/// Everything recorded of one layer: of the trace itself, then of its probes.
std::vector<LayerCheck> checks_of(const TraceReader& trace, int layer) {
  std::set<int> probes;
  for (size_t p = 0; p < trace.info().probes.size(); ++p)
    if (!trace.info().probes[p].check_token.empty()) probes.insert(static_cast<int>(p));
  const bool own = trace.header(layer).has_check, added = trace.header(layer).has_added;
  if (!own && !added && probes.empty()) return {};
  const LayerTrace tensors = trace.read_layer(layer, true, probes);
  std::vector<LayerCheck> checks;
  if (own) checks.push_back(check_layer(tensors));
  if (added) checks.push_back(check_added(tensors));
  for (const int probe : probes) checks.push_back(check_probe(tensors, probe));
  return checks;
}

void print_check(const LayerCheck& check, bool passed) {
  const std::string head = check.head == LayerCheck::kAdded ? "added" : fmt::to_string(check.head);
  fmt::print("{:5}  {:10.3e}  {:>5}  {}{}\n", check.layer, check.error, head,
             passed ? "ok" : "FAILED", check.probe.empty() ? "" : "  probe " + check.probe);
}

int run_verify(const Values& values) {
  const TraceReader trace(text(values, "trace"));
  for (const std::string& warning : trace.warnings()) note(warning);
  const double limit = real_of(values, "tolerance", usual_tolerance(trace), 0, 1e300);
  const bool json = has(values, "json");
  std::vector<LayerCheck> checks;
  std::set<int> layers, failed;
  for (const int layer : chosen_layers(values, trace.info()))
    for (const LayerCheck& check : checks_of(trace, layer)) {
      if (checks.empty() && !json) fmt::print("layer       error   head\n");
      layers.insert(layer);
      if (check.error > limit) failed.insert(layer);
      if (!json) print_check(check, check.error <= limit);
      checks.push_back(check);
    }
  if (checks.empty())
    bad_data({"no recorded outputs to verify", trace.info().path, "",
              "check/query_position and check_output in a layer"});
  if (json) print_json(checks, limit);
  if (!failed.empty()) {
    print_error(
        fmt::format("{}: {} of {} layers differ by more than {:g} from the recorded outputs",
                    trace.info().path, failed.size(), layers.size(), limit));
    return kNotVerified;
  }
  if (!json) fmt::print("{} within {:g}\n", counted(std::ssize(layers), "layer"), limit);
  return kDone;
}

const bool verify_registered = register_command(
    {.name = "verify",
     .summary = "recompute the recorded attention outputs of a trace",
     .arguments = {{.name = "trace", .meaning = "the trace file"}},
     .description =
         "Computes the attention outputs at the recorded positions in float64 from the stored\n"
         "queries, keys and values, and prints for each layer the largest relative error over its\n"
         "query heads; then that of what the layer adds to the residual stream, and of each "
         "probe.\n"
         "Exit status 4 when a layer is above the\n"
         "tolerance, 3 when the trace has no recorded outputs. A wrong head order, scale or rotary "
         "embedding gives errors near 1.",
     .options = {{"tolerance", "X",
                  "largest relative error that passes (default: 1e-4 if everything is "
                  "float32, else 1e-2)"},
                 {"layers"},
                 {"json"}},
     .examples = {"kvsim verify data/sample.h5",
                  "kvsim verify data/sample.h5 --layers 0,5 --tolerance 1e-2"},
     .run = run_verify});

}  // namespace
}  // namespace kvsim::cli::trace_commands
