#pragma once
#include <string>
#include <vector>

#include "sim/policy/record.hpp"

namespace kvsim {

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
