#pragma once
#include <string>

#include "analysis/dataset.hpp"

namespace kvsim {

/// Writes a dataset as netCDF-4 (results-format of the design), so that xarray, netCDF-C and any
/// HDF5 tool read it. The target appears when it is complete and not before. Callers check the
/// target with check_target() before any work.
void write_results(const Dataset& dataset, const std::string& target);

}  // namespace kvsim
