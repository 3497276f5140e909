#pragma once
#include "sim/core/layer_trace.hpp"
#include "sim/stages/scored_layer.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Lets tokens of the record's probe observe a segment (policies.md 5.1); where the trace has no
/// such probe none do.
void observe_with_probe(const Settings& settings, const TraceInfo& info, Segment& segment);

/// Name of the record's probe.
const std::string& probe_name(const Settings& settings);

}  // namespace kvsim
