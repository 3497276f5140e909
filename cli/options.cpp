#include "cli/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "analysis/variables.hpp"
#include "cli/parse.hpp"
#include "cli/terminal.hpp"
#include "sim/backend/cuda_backend.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli {
void add_general_options(po::options_description& options) {
  options.add_options()("threads", one("N"), "threads to use (default: all cores)")(
      "progress", one("auto|json"),
      "a bar or a line now and then, or lines of JSON for programs (default: auto)")(
      "quiet,q", "no progress, no notes, no table of results")(
      "verbose,v", "say more on standard error")("help,h", "this text")("version",
                                                                        "print the version");
}

void add_output_options(po::options_description& options, const std::string& meaning) {
  options.add_options()("out,o", one("FILE"), meaning.c_str())("overwrite",
                                                               "replace an existing file");
}

void add_seed_option(po::options_description& options) {
  options.add_options()("seed", one("N"), "seed of everything random (default: 0)");
}

void add_layers_option(po::options_description& options) {
  options.add_options()("layers", one("LIST"), "layers to use, e.g. 0,5,10-15 (default: all)");
}

void add_later_option(po::options_description& options) {
  options.add_options()("later", one("PROBE"),
                        "measure on this probe's tokens in the place of the trace's later ones");
}

void add_budget_option(po::options_description& options) {
  options.add_options()(
      "budget", several("LIST"),
      "entries kept per KV head: ratios 0.2 or 20%, counts 512; lists by comma, ranges "
      "0.1:0.9:0.1; repeatable");
}

void add_policy_option(po::options_description& options, bool functions) {
  const std::string meaning =
      "PRESET[:VARIANT][,key=value]..., repeatable; `kvsim policies` lists them";
  const std::string function = ". python:FILE.py:FUNCTION stands for a preset that scores by it";
  options.add_options()("policy", several("RECORD"),
                        (meaning + (functions ? function : "")).c_str());
}

void add_scores_option(po::options_description& options) {
  options.add_options()("scores", one("FOLDER"),
                        "scores of functions in Python, computed already (the package gives this)");
}

void add_metric_option(po::options_description& options) {
  const std::string meaning = fmt::format("further metrics to compute, repeatable: {}",
                                          fmt::join(metrics_on_request(), ", "));
  options.add_options()("metric", several("LIST"), meaning.c_str());
}

void add_backend_option(po::options_description& options) {
  options.add_options()("backend", one("auto|cpu|cuda"), "where to compute (default: auto)");
}

void add_json_option(po::options_description& options) {
  options.add_options()("json", "print one JSON document on standard output");
}

void add_csv_option(po::options_description& options) {
  options.add_options()("csv", one("FILE"), "also write the summaries as a tidy table");
}

void add_table_option(po::options_description& options) {
  options.add_options()("table", one("text|md|tex"),
                        "form of the table: for the terminal, or Markdown or LaTeX (booktabs) to "
                        "paste, with a caption (default: text)");
}

TableForm table_form(const std::string& name, const std::string& where) {
  const std::map<std::string, TableForm> forms = {
      {"text", TableForm::text}, {"md", TableForm::markdown}, {"tex", TableForm::latex}};
  const auto found = forms.find(name);
  if (found == forms.end())
    usage_error({.what = "unknown form of a table",
                 .where = where,
                 .found = name,
                 .expected = "text, md or tex"});
  return found->second;
}

TableForm table_form(const Values& values) {
  const TableForm form = has(values, "table") ? table_form(text(values, "table"), "--table")
                                              : TableForm::text;
  if (form != TableForm::text && values.count("json") > 0)
    usage_error({.what = "--json and --table exclude each other", .where = "--table"});
  return form;
}

bool has(const Values& values, const char* name) { return values.count(name) > 0; }

std::string text(const Values& values, const char* name) {
  return has(values, name) ? values[name].as<std::string>() : std::string();
}

std::vector<std::string> texts(const Values& values, const char* name) {
  return has(values, name) ? values[name].as<std::vector<std::string>>()
                           : std::vector<std::string>();
}

uint64_t seed(const Values& values) {
  if (!has(values, "seed")) return 0;
  return static_cast<uint64_t>(
      parse_count(text(values, "seed"), "--seed", 0, std::numeric_limits<int64_t>::max()));
}

std::unique_ptr<Backend> chosen_backend(const Values& values) {
  const std::string name = has(values, "backend") ? text(values, "backend") : "auto";
  if (name == "cuda") return make_cuda_backend();
  if (name == "auto" && has_cuda_backend()) {
    try {
      return make_cuda_backend();
    } catch (const Error& error) {
      note("computing on the CPU, since CUDA has " + error.parts().what +
           (error.parts().found.empty() ? "" : ": " + error.parts().found));
    }
  }
  if (name == "auto" || name == "cpu") return make_cpu_backend();
  usage_error({.what = "unknown backend",
               .where = "--backend",
               .found = name,
               .expected = has_cuda_backend() ? "auto, cpu or cuda" : "auto or cpu"});
}

std::vector<int> chosen_layers(const Values& values, const TraceInfo& info) {
  if (!has(values, "layers")) return info.layers;
  const std::vector<int> layers = parse_layers(text(values, "layers"), "--layers");
  for (const int layer : layers) {
    if (std::binary_search(info.layers.begin(), info.layers.end(), layer)) continue;
    bad_data({.what = "the trace does not have the layer asked for",
              .where = info.path,
              .found = "--layers with " + std::to_string(layer),
              .expected = fmt::format("layers among {}", fmt::join(info.layers, ","))});
  }
  return layers;
}

std::vector<std::string> budget_items(const Values& values) {
  std::vector<std::string> items;
  for (const std::string& list : texts(values, "budget"))
    for (std::string& item : expand_numbers(list, "--budget")) items.push_back(std::move(item));
  return items;
}

}  // namespace kvsim::cli
