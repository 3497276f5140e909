#pragma once
#include <set>
#include <string>
#include <vector>

#include "sim/core/layer_trace.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/side_files.hpp"

namespace kvsim {

/// Throws when a trace cannot serve some record at some budget: bad data, naming the policy and
/// what it needs and the trace holds; usage for whitelists that do not fit and the like. Asks what
/// the trace holds and reads no tensor. `asked_by` follows a policy's name in messages.
void check_records(const std::vector<Record>& records, const std::vector<Budget>& budgets,
                   const TraceInfo& info, const std::vector<int>& layers, const SideFiles& files,
                   const std::string& asked_by = "");

/// SPEC of `kvsim capture --probe SPEC` that stores what the record asks of its probe.
std::string probe_spec(const Settings& settings);

/// Numbers of the probes whose queries observe for some record.
std::set<int> observing_probes(const std::vector<Record>& records, const TraceInfo& info);

}  // namespace kvsim
