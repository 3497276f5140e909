#pragma once
#include "cli/command.hpp"
#include "run/explain/explain.hpp"
#include "run/study/study.hpp"

namespace kvsim::cli {

/// The items of lists that were given to --NAME, in typed order, each once. One that is not `known`
/// is a usage error that tells what there is: `shown`.
std::vector<std::string> chosen_names(const std::vector<std::string>& lists,
                                      const std::string& name,
                                      const std::vector<std::string>& known,
                                      const std::vector<std::string>& shown);

// The options of `kvsim replay` that say what to replay and what to measure.

std::vector<Option> measure_options();
/// How to measure, from what was typed.
void read_measure_options(const Values& values, StudyOptions& options);

/// Reads --policy and --budget, or takes the useful default set. `by_default` tells which records
/// nobody typed: those that a trace cannot serve are left out instead of failing the run.
struct Request {
  StudyOptions options;  ///< without layers, which depend on the trace
  bool default_policies = false;
  std::vector<FragilityGroup> fragility;  ///< of --fragility; their records are in the options
};
Request read_request(const Values& values);

/// The records that this trace can serve, when they are the default ones; each of the others is
/// named on standard error with its reason. Typed records are returned as they are.
std::vector<Record> served_records(const Request& request, const TraceReader& reader,
                                   const std::vector<int>& layers);

}  // namespace kvsim::cli
