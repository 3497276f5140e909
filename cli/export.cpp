#include <fmt/format.h>

#include <algorithm>

#include "cli/command.hpp"
#include "cli/functions.hpp"
#include "cli/results_choice.hpp"
#include "cli/terminal.hpp"
#include "io/hdf5_output.hpp"
#include "io/trace_reader.hpp"
#include "kvsim_version.hpp"
#include "sim/core/error.hpp"
#include "sim/policy/record.hpp"

namespace kvsim::cli::export_command {
namespace {

constexpr uint8_t kNoOwner = 255;  // the mask of policies whose owners are of the other kind

/// What a record must say for its kept sets to be all that it does to the prompt's cache.
constexpr std::pair<const char*, const char*> kPlainStages[] = {
    {"schedule", "prefill"}, {"merge", "drop"}, {"quantize", "none"}, {"positions", "absolute"}};

void describe(po::options_description& options) {
  add_output_options(options, "file of kept sets (default: kept.h5, in this folder)");
  options.add_options()("policy", one("RECORD"),
                        "policy, as the results name it (default: the only one)")(
      "budget", one("B"), "budget, as it was typed (default: the only one)")(
      "trace", one("FILE"),
      "the trace, whose prompt tokens are stored, too (default: the one "
      "named in the results, beside them, in this folder or in data/)");
}

/// The chosen index, or 0 where there is no choice.
int64_t chosen(const Values& values, const Dataset& results, const char* option,
               const char* variable) {
  const int64_t index = choice(values, results, option, variable);
  if (index >= 0) return index;
  if (results.size(option) != 1) {
    usage_error({.what = std::string("which ") + option + "?",
                 .where = "export",
                 .expected = std::string("--") + option + " with " + choices(results, variable)});
  }
  return 0;
}

void check_plain(const std::string& policy) {
  const Record record = Record::parse(with_functions(policy));
  for (const auto& [stage, wanted] : kPlainStages) {
    if (record.settings.is(stage, wanted)) continue;
    bad_data({.what = "kept sets are not all that this policy does to the cache",
              .where = policy,
              .found = std::string(stage) + "=" + record.settings.text(stage),
              .expected = std::string(stage) + "=" + wanted});
  }
}

/// The mask variable that holds this cell's sets: per KV head or per query head.
const Variable& mask_variable(const Dataset& results, const std::string& path, int64_t policy,
                              int64_t budget) {
  for (const char* name : {"kept_mask", "kept_mask_query"}) {
    if (!results.has(name)) continue;
    const auto row = results.row<uint8_t>(name, {policy, budget});
    if (std::ranges::find(row, kNoOwner) == row.end()) return results.at(name);
  }
  bad_data({.what = "no kept sets", .where = path, .hint = "replay --save-keep writes them"});
}

/// The prompt's tokens, by which a user of the sets can tell their text; empty without the trace.
std::vector<int32_t> prompt_tokens(const Values& values, const Dataset& results,
                                   const std::string& path, int64_t prompt_len) {
  const std::string trace = trace_beside(values, results, path);
  if (trace.empty()) {
    note("the trace is not here: the prompt's tokens are left out (--trace names it)");
    return {};
  }
  const TraceReader reader(trace);
  if (reader.digest() != attribute(results, "trace_digest")) {
    bad_data({.what = "not the trace of these results",
              .where = trace,
              .found = "another content",
              .expected = attribute(results, "trace_digest")});
  }
  std::vector<int32_t> ids = reader.token_ids();
  ids.resize(std::min(ids.size(), static_cast<size_t>(prompt_len)));
  return ids;
}

void write_sets(h5::OutputFile& file, const Dataset& results, const Variable& mask, int64_t policy,
                int64_t budget) {
  const auto& layers = std::get<std::vector<int32_t>>(results.at("layer").values);
  const h5::Shape shape{results.size(mask.dims[3]), results.size(mask.dims[4])};
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto row = results.row<uint8_t>(mask.name, {policy, budget, static_cast<int64_t>(l)});
    file.write(fmt::format("layers/{}/kept", layers[l]), H5T_NATIVE_UINT8, shape, row.data());
  }
}

int run(const Values& values) {
  const auto path = values["results"].as<std::string>();
  const std::string target = has(values, "out") ? text(values, "out") : "kept.h5";
  check_target(target, has(values, "overwrite"), {path, text(values, "trace")});
  const Dataset results = open_results(path, {"policy", "budget", "budget_label", "layer"});
  const int64_t policy = chosen(values, results, "policy", "policy");
  const int64_t budget = chosen(values, results, "budget", "budget_label");
  const auto at = [](const auto& list, int64_t i) { return list[static_cast<size_t>(i)]; };
  const std::string record = at(std::get<std::vector<std::string>>(results.at("policy").values),
                                policy);
  check_plain(record);
  const Variable& mask = mask_variable(results, path, policy, budget);
  const int64_t prompt_len = results.size("position");
  const std::vector<int32_t> ids = prompt_tokens(values, results, path, prompt_len);

  h5::OutputFile file(target);
  file.attribute("/", "format", std::string("kvsim-kept"));
  file.attribute("/", "version", int64_t{1});
  file.attribute("/", "policy", record);
  file.attribute("/", "budget",
                 at(std::get<std::vector<std::string>>(results.at("budget_label").values), budget));
  file.attribute("/", "budget_ratio",
                 at(std::get<std::vector<double>>(results.at("budget").values), budget));
  file.attribute("/", "granularity", std::string(mask.dims[3] == "head" ? "query" : "kv"));
  file.attribute("/", "prompt_len", prompt_len);
  for (const char* name : {"model", "trace", "trace_digest"})
    file.attribute("/", name, attribute(results, name));
  file.attribute("/", "kvsim_version", std::string(KVSIM_VERSION));
  write_sets(file, results, mask, policy, budget);
  if (!ids.empty()) {
    file.write("tokens/id", H5T_NATIVE_INT32, {static_cast<int64_t>(ids.size())}, ids.data());
  }
  file.commit();
  note(target + " written");
  return kDone;
}

const bool registered = register_command(
    {.name = "export",
     .summary = "write the kept sets of one policy and budget for use in another program",
     .arguments = {{.name = "results", .meaning = "a results file written with --save-keep"}},
     .description =
         "Writes an HDF5 file with layers/<l>/kept [Hkv, n] (or [Hq, n] where every query head "
         "has\n"
         "its own set), 1 for kept entries, and the prompt's tokens. data/README.md describes it;\n"
         "data/kept_sets_press.py applies it in kvpress. Policies that merge, quantise or "
         "compress\n"
         "at every step are more than a set and are refused.",
     .describe = describe,
     .examples = {"kvsim export sample.nc --policy snapkv --budget 0.2 -o kept.h5",
                  "kvsim export sample.nc --policy restkv --budget 0.5 --trace data/sample.h5 "
                  "-o restkv.h5"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::export_command
