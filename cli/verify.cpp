#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cli/command.hpp"
#include "cli/parse.hpp"
#include "cli/terminal.hpp"
#include "io/trace_reader.hpp"
#include "run/trace/attention_reference.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli::verify_command {
namespace {

void describe(po::options_description& options) {
  options.add_options()("tolerance", one("X"),
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

int run(const Values& values) {
  const TraceReader trace(text(values, "trace"));
  for (const std::string& warning : trace.warnings()) note(warning);
  const double limit = tolerance(values, trace);
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
    bad_data({.what = "no recorded outputs to verify",
              .where = trace.info().path,
              .expected = "check/query_position and check_output in a layer"});
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

const bool registered = register_command(
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
     .describe = describe,
     .examples = {"kvsim verify data/sample.h5",
                  "kvsim verify data/sample.h5 --layers 0,5 --tolerance 1e-2"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::verify_command
