#pragma once
#include <boost/program_options.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/paper_table.hpp"
#include "sim/backend/backend.hpp"
#include "sim/core/layer_trace.hpp"

/// Options that mean the same in every command: each has one function that adds it to a command's
/// table and, where it needs parsing, one that reads it.
namespace kvsim::cli {

namespace po = boost::program_options;
using Values = po::variables_map;

/// -h, -q, -v, --threads, --progress; the framework adds them to every command.
void add_general_options(po::options_description& options);

void add_output_options(po::options_description& options,
                        const std::string& meaning);       ///< -o, --overwrite
void add_seed_option(po::options_description& options);    ///< --seed N (0)
void add_layers_option(po::options_description& options);  ///< --layers LIST
void add_later_option(po::options_description& options);   ///< --later PROBE
void add_budget_option(po::options_description& options);  ///< --budget LIST, repeatable
/// --policy RECORD, repeatable; without `functions` for commands that call none of them.
void add_policy_option(po::options_description& options, bool functions = true);
void add_scores_option(po::options_description& options);   ///< --scores FOLDER
void add_metric_option(po::options_description& options);   ///< --metric LIST
void add_backend_option(po::options_description& options);  ///< --backend auto|cpu|cuda
void add_json_option(po::options_description& options);     ///< --json
void add_csv_option(po::options_description& options);      ///< --csv FILE
void add_table_option(po::options_description& options);    ///< --table text|md|tex

/// Values of an option, as `--help` names them: one text, or several of a repeatable option.
inline auto one(const std::string& placeholder) {
  return po::value<std::string>()->value_name(placeholder);
}
inline auto several(const std::string& placeholder) {
  return po::value<std::vector<std::string>>()->value_name(placeholder)->composing();
}

bool has(const Values& values, const char* name);
std::string text(const Values& values, const char* name);                ///< "" when not given
std::vector<std::string> texts(const Values& values, const char* name);  ///< of a repeatable option
uint64_t seed(const Values& values);

/// The form of --table; a form to paste goes with no --json.
TableForm table_form(const Values& values);
TableForm table_form(const std::string& name, const std::string& where);

/// The backend of --backend; a name that this build does not have is a usage error.
std::unique_ptr<Backend> chosen_backend(const Values& values);

/// Layers of `info` chosen by --layers, ascending; all without the option. A layer that the trace
/// does not have is bad data.
std::vector<int> chosen_layers(const Values& values, const TraceInfo& info);
/// Items of all --budget options in typed order, ranges expanded; still text.
std::vector<std::string> budget_items(const Values& values);

}  // namespace kvsim::cli
