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

/// Keys of a preset that change together from record to record. Rows of `values` have one text per
/// key and come in the order of the records; `original` are the preset's own.
struct GridAxis {
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> values;
  std::vector<std::string> original;
};

/// The axes of the grid that the records of one preset make: one for all keys that go along with
/// each other, as with `zip`, and none for a key that another one decides.
std::vector<GridAxis> grid_axes(const std::vector<Record>& records);

/// The attribute `axes` of results: {"PRESET[:VARIANT]": [{"keys", "values", "default"}]}; presets
/// with one record are left out.
std::string grid_axes_json(const std::vector<Record>& records);

}  // namespace kvsim
