#pragma once
#include "analysis/dataset.hpp"

namespace kvsim {

/// Name of it in messages.
inline constexpr const char* kResultsFile = "results file of kvsim";

/// Reads a results file back into a Dataset: dimensions with their coordinates, variables with
/// units and long name, and the attributes of the run. A file that is not one written by
/// write_results() is bad data.
Dataset read_results(const std::string& path);

/// Writes a dataset as netCDF-4 (results-format of the design), so that xarray, netCDF-C and any
/// HDF5 tool read it. The target appears when it is complete and not before. Callers check the
/// target with check_target() before any work.
void write_results(const Dataset& dataset, const std::string& target);

}  // namespace kvsim
