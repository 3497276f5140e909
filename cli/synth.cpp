#include "run/trace/synth.hpp"

#include <algorithm>

#include "cli/command.hpp"
#include "cli/parse.hpp"
#include "cli/terminal.hpp"
#include "io/temporary_file.hpp"
#include "io/trace_reader.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli::synth_command {
namespace {

void describe(po::options_description& options) {
  options.add_options()("prompt", one("N"), "prompt entries n (default: 1024)")(
      "steps", one("N"), "later tokens (default: 128)")(
      "num-layers", one("N"), "layers (default: 2)")("heads", one("N"), "query heads (default: 4)")(
      "kv-heads", one("N"), "KV heads (default: 2)")(
      "head-dim", one("N"), "size of queries and keys, at least 4 (default: 64)")(
      "value-dim", one("N"), "size of values (default: head-dim)")(
      "hidden", one("N"), "width after the output projection (default: 256)")(
      "dtype", one("TYPE"), "float32, float16 or bfloat16 (default: float16)")(
      "queries", one("window:M|all"), "prompt queries to store: the last M or all (default: all)")(
      "spans", one("LIST"),
      "NAME:BEGIN-END,... half-open, or none (default: defense and "
      "directive, an eighth of the prompt each)")("softcap", one("C"), "logits become C*tanh(x/C)")(
      "sliding-window", one("W"), "odd layers see the last W positions only")(
      "sink", "every head has an attention sink")(
      "probe", one("CHUNK"), "a probe named repeat reads the prompt again, CHUNK tokens at a time");
  add_seed_option(options);
  add_output_options(options, "the trace file to write");
}

int64_t count(const Values& values, const char* name, int64_t otherwise, int64_t least,
              int64_t most) {
  if (!has(values, name)) return otherwise;
  return parse_count(text(values, name), std::string("--") + name, least, most);
}

ElementType parse_type(const std::string& name) {
  for (const ElementType type : {ElementType::float32, ElementType::float16, ElementType::bfloat16})
    if (name == element_name(type)) return type;
  usage_error({.what = "unknown type",
               .where = "--dtype",
               .found = name,
               .expected = "float32, float16 or bfloat16"});
}

int64_t parse_queries(const std::string& typed) {
  if (typed.empty() || typed == "all") return -1;
  if (!typed.starts_with("window:"))
    usage_error({.what = "unknown choice",
                 .where = "--queries",
                 .found = typed,
                 .expected = "window:M or all"});
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
    if (!parts)
      usage_error(
          {.what = "bad span", .where = "--spans", .found = item, .expected = "NAME:BEGIN-END"});
    Span span{item.substr(0, colon), 0, 0};
    span.begin = parse_count(item.substr(colon + 1, dash - colon - 1), "--spans", 0, prompt);
    if (span.begin < last_end)
      usage_error({.what = "spans overlap, or are out of order",
                   .where = "--spans",
                   .found = item,
                   .expected = "one that begins at " + std::to_string(last_end) + " or later"});
    span.end = parse_count(item.substr(dash + 1), "--spans", span.begin, prompt);
    last_end = span.end;
    const bool twice = std::any_of(spans.begin(), spans.end(),
                                   [&](const Span& other) { return other.name == span.name; });
    if (twice || !span_name_fault(span.name).empty())
      usage_error({.what = twice ? "span name used twice" : "bad span name",
                   .where = "--spans",
                   .found = span.name});
    spans.push_back(span);
  }
  return spans;
}

SynthConfig read_config(const Values& values) {
  constexpr int64_t kMost = int64_t{1} << 24;
  SynthConfig config;
  config.prompt = count(values, "prompt", config.prompt, 1, kMost);
  config.steps = count(values, "steps", config.steps, 0, kMost);
  config.num_layers = static_cast<int>(count(values, "num-layers", config.num_layers, 1, 10000));
  config.heads = static_cast<int>(count(values, "heads", config.heads, 1, 4096));
  config.kv_heads = static_cast<int>(
      count(values, "kv-heads", std::min(config.kv_heads, config.heads), 1, config.heads));
  if (config.heads % config.kv_heads != 0)
    usage_error({.what = "not a divisor of --heads",
                 .where = "--kv-heads",
                 .found = std::to_string(config.kv_heads),
                 .expected = "a divisor of " + std::to_string(config.heads)});
  config.head_dim = count(values, "head-dim", config.head_dim, 4, 65536);
  config.value_dim = count(values, "value-dim", config.head_dim, 1, 65536);
  config.hidden = count(values, "hidden", config.hidden, 1, 1 << 20);
  if (has(values, "dtype")) config.type = parse_type(text(values, "dtype"));
  config.query_window = parse_queries(text(values, "queries"));
  if (config.query_window == 0 && config.steps == 0)
    usage_error({.what = "no query is left to store",
                 .where = "--queries",
                 .expected = "window:1 or more, or --steps above 0"});
  config.spans = parse_spans(values, config.prompt);
  if (has(values, "softcap"))
    config.softcap = parse_real(text(values, "softcap"), "--softcap", 1e-3, 1e6);
  config.sliding_window = count(values, "sliding-window", 0, 1, kMost);
  config.sink = has(values, "sink");
  config.probe_chunk = count(values, "probe", 0, 1, kMost);
  config.seed = seed(values);
  return config;
}

int run(const Values& values) {
  if (!has(values, "out"))
    usage_error({.what = "missing -o", .where = "synth", .expected = "kvsim synth -o TRACE"});
  const SynthConfig config = read_config(values);
  const std::string path = text(values, "out");
  check_target(path, has(values, "overwrite"));
  write_synth(config, path);
  note(path + " written");
  return kDone;
}

const bool registered = register_command(
    {.name = "synth",
     .summary = "write a synthetic trace with known properties",
     .description =
         "Keys and queries are noise with planted structure, the same in every layer: a few heavy\n"
         "hitters that every query attends to; a hot spot that drifts backwards through the\n"
         "prompt during the later steps (even query heads; odd ones look at their own\n"
         "neighbourhood); and spikes: later steps that suddenly attend to one entry that nothing\n"
         "attended to before. The trace's `source` attribute lists heavy hitters and spikes. The\n"
         "same options and seed give the same numbers.",
     .describe = describe,
     .examples = {"kvsim synth -o synthetic.h5 --prompt 2048 --steps 128 --seed 1",
                  "kvsim synth -o narrow.h5 --heads 8 --kv-heads 1 --value-dim 32 --dtype float32"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::synth_command
