#pragma once
#include <vector>

#include "analysis/dataset.hpp"
#include "analysis/study_options.hpp"
#include "io/trace_reader.hpp"

namespace kvsim {

/// Root attributes: what ran, on what, with which parameters.
void describe_run(Dataset& dataset, const TraceReader& reader, const StudyOptions& options,
                  const std::vector<Record>& records, const Backend& backend, int64_t wo_steps);

}  // namespace kvsim
