#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/options.hpp"
#include "cli/parse.hpp"
#include "cli/terminal.hpp"
#include "io/trace_reader.hpp"
#include "run/trace/attention_reference.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli::verify_command {
namespace {

void describe(po::options_description& options) {
  options.add_options()("tolerance", po::value<std::string>()->value_name("X"),
                        "largest relative error that passes (default: 1e-4 if everything is "
                        "float32, else 1e-2)");
  add_layers_option(options);
  add_json_option(options);
}

double tolerance(const Values& values, const TraceReader& trace) {
  if (has(values, "tolerance"))
    return parse_real(text(values, "tolerance"), "--tolerance", 0, 1e300);
  for (const LayerHeader& layer : trace.headers())
    for (const ElementType type : {layer.q, layer.k, layer.v, layer.wo})
      if (type != ElementType::float32) return 1e-2;
  return 1e-4;
}

void print_json(const std::vector<LayerCheck>& checks, double limit) {
  nlohmann::ordered_json document;
  document["tolerance"] = limit;
  for (const LayerCheck& check : checks)
    document["layers"].push_back({{"layer", check.layer},
                                  {"error", check.error},
                                  {"head", check.head},
                                  {"passed", check.error <= limit}});
  fmt::print("{}\n", document.dump(2));
}

int run(const Values& values) {
  const TraceReader trace(text(values, "trace"));
  for (const std::string& warning : trace.warnings()) note(warning);
  const double limit = tolerance(values, trace);
  const bool json = has(values, "json");
  std::vector<LayerCheck> checks;
  int failed = 0;
  for (const int layer : chosen_layers(values, trace.info())) {
    if (!trace.header(layer).has_check) continue;
    if (checks.empty() && !json) fmt::print("layer       error  head\n");
    checks.push_back(check_layer(trace.read_layer(layer, true)));
    const LayerCheck& check = checks.back();
    const bool passed = check.error <= limit;
    failed += passed ? 0 : 1;
    if (!json)
      fmt::print("{:5}  {:10.3e}  {:4}  {}\n", check.layer, check.error, check.head,
                 passed ? "ok" : "FAILED");
  }
  if (checks.empty())
    bad_data({.what = "no recorded outputs to verify",
              .where = trace.info().path,
              .expected = "check/query_position and check_output in a layer"});
  if (json) print_json(checks, limit);
  if (failed > 0) {
    print_error(
        fmt::format("{}: {} of {} layers differ by more than {:g} from the recorded outputs",
                    trace.info().path, failed, checks.size(), limit));
    return kNotVerified;
  }
  if (!json) fmt::print("{} layers within {:g}\n", checks.size(), limit);
  return kDone;
}

const bool registered = register_command(
    {.name = "verify",
     .summary = "recompute the recorded attention outputs of a trace",
     .arguments = {{.name = "trace", .meaning = "the trace file"}},
     .description =
         "Computes the attention outputs at the recorded positions in float64 from the stored\n"
         "queries, keys and values, and prints for each layer the largest relative error over its\n"
         "query heads. Exit status 4 when a layer is above the tolerance, 3 when the trace has no\n"
         "recorded outputs. A wrong head order, scale or rotary embedding gives errors near 1.",
     .describe = describe,
     .examples = {"kvsim verify data/sample.h5",
                  "kvsim verify data/sample.h5 --layers 0,5 --tolerance 1e-2"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::verify_command
