#pragma once
#include "cli/command.hpp"
#include "run/explain/fragility.hpp"
#include "run/study/study.hpp"

/// The options of `kvsim replay` that say what to replay and what to measure.
namespace kvsim::cli {

void add_measure_options(po::options_description& options);

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
