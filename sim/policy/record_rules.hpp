#pragma once
#include <set>
#include <string>

#include "sim/stages/settings.hpp"

namespace kvsim {

/// The value of `votes` that the record's `merge` brings with it.
std::string usual_votes(const Settings& settings);

/// Keys that the chosen kinds read; others may not be typed, so that no setting is ignored.
std::set<std::string> used_keys(const Settings& settings);

/// Checks what no single key can: combinations of kinds, and typed keys that nothing reads.
/// `text` is the record as typed, `original` the preset's own values.
void check_record(const std::string& text, const Settings& original,
                  const std::set<std::string>& typed, const Settings& settings);

}  // namespace kvsim
