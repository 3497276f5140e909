#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "sim/stages/settings.hpp"

namespace kvsim {

/// One row of the preset table: a complete assignment of the stages.
struct Preset {
  std::string name;
  std::string variant;  ///< empty for the bare preset
  std::string cells;    ///< key=value pairs that differ from the parameters' defaults
  std::string summary;  ///< one line
  std::string source;   ///< paper or repository
};

/// Every row, in the order of the table.
const std::vector<Preset>& presets();
const Preset* find_preset(std::string_view name, std::string_view variant);
/// "snapkv:official", or "snapkv" for a bare preset.
std::string preset_title(const Preset& preset);
/// Every declared key with this preset's value.
Settings preset_settings(const Preset& preset);

}  // namespace kvsim
