#pragma once
#include "analysis/dataset.hpp"
#include "sim/policy/record.hpp"

namespace kvsim {

/// The version of results files that this program writes, and the latest that it reads:
/// results.md 5.
inline constexpr int64_t kResultsVersion = 1;
inline constexpr const char* kResultsVersionAttribute = "results_version";

/// A results file that a command may use without looking twice: written by kvsim, of no later
/// version, the axes of a replay there, and every variable that this program declares of the type
/// and over the dimensions that it declares. Anything else is bad data. Variables that it does not
/// know are kept as they are.
Dataset read_known_results(const std::string& path);

/// Does it for results that were read already.
void check_known_results(const Dataset& results, const std::string& path);

/// The attribute `axes` of results: {"PRESET[:VARIANT]": [{"keys", "values", "default"}]}, the axes
/// of the grid that the records of each preset make: one for all keys that go along with each
/// other, as with `zip`, and none for a key that another one decides. Rows of `values` have one
/// text per key and come in the order of the records; `default` are the preset's own.
std::string grid_axes_json(const std::vector<Record>& records);

}  // namespace kvsim
