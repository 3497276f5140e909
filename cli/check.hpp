#pragma once
#include <cstdio>

#include "analysis/dataset.hpp"
#include "analysis/study_options.hpp"
#include "io/trace_reader.hpp"
#include "sim/backend/backend.hpp"

namespace kvsim::cli {

/// `kvsim replay --check`: one layer of the run, chosen at random, by plain code in float64 and by
/// another instruction set; prints the largest differences on `out`. False when they are faults.
bool check_replay(const TraceReader& reader, const StudyOptions& options, const Dataset& results,
                  Backend& backend, std::FILE* out);

}  // namespace kvsim::cli
