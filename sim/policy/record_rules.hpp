#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/stages/kind.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// The value of `votes` that the record's `merge` brings with it.
std::string usual_votes(const Settings& settings);

/// When a record uses a key: if `always`, or if it is a stage, or if a kind that is chosen for a
/// used stage lists it (KindInfo::keys); and then only if each stage of `only_with` has one of the
/// kinds that stand there.
struct KeyUse {
  bool always = false;
  std::map<std::string, std::vector<std::string>> only_with = {};
};
/// Of every declared key that has a condition of its own, or none at all.
const std::map<std::string, KeyUse>& key_uses();

/// Keys that the chosen kinds read; others may not be typed, so that no setting is ignored.
std::set<std::string> used_keys(const Settings& settings);

/// Keys of them that name a file, in order of their names.
std::vector<std::string> file_keys(const Settings& settings);

/// Is what is kept at a budget part of what is kept at every larger one, whatever the trace? Asked
/// of the kinds and of the declarations of keys; false where it depends on the trace. A promise
/// that tests hold policies to: replay looks at the sets themselves (sim/replay/plans.hpp).
bool budgets_nest(const Settings& settings);

/// Is exactly the budget kept: layers * heads * B entries in all?
bool spends_budget(const Settings& settings);

/// Checks what no single key can: combinations of kinds, and typed keys that nothing reads.
/// `text` is the record as typed, `original` the preset's own values.
void check_record(const std::string& text, const Settings& original,
                  const std::set<std::string>& typed, const Settings& settings);

}  // namespace kvsim
