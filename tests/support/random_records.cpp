#include "tests/support/random_records.hpp"

#include <xxhash.h>

#include <cstdlib>
#include <map>
#include <set>

#include "sim/core/error.hpp"
#include "sim/core/numbers.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/kind.hpp"
#include "tests/reference/kinds.hpp"

namespace kvsim::test {
namespace {

constexpr double kKindChanges = 0.5;    // chance that a stage leaves its default
constexpr double kValueChanges = 0.35;  // the same for a parameter

/// The dice of one record, thrown by the name of what they decide.
class Dice {
 public:
  Dice(uint64_t seed, uint64_t record) : seed_(seed), record_(record) {}
  double roll(const std::string& name) const {
    return uniform(seed_, 77, record_, XXH3_64bits(name.data(), name.size()));
  }

 private:
  uint64_t seed_, record_;
};

/// Combinations whose meaning the rules leave open.
bool unclear(const Settings& s) {
  const bool local = !s.is("constrain", "none") && s.is("fair_scores", "local");
  return (local && s.is("allocate", "cake") && !s.is("queries", "window")) ||
         (local && s.is("allocate", "d2o")) ||
         (local && s.is("rounding", "kvpress") && s.is("stage1", "ratio")) ||
         (s.is("protected_rank", "layer-max") && !s.is("whitelist", "none"));
}

/// Appends cells to a record if it may have them.
bool extend(std::string& text, const std::string& cells) {
  try {
    if (unclear(Record::parse(text + cells).settings)) return false;
  } catch (const Error&) {
    return false;
  }
  text += cells;
  return true;
}

/// What a record needs to choose a kind: the files that it reads, and what it is tested with.
std::string cells_of(const KindInfo& kind) {
  std::string cells = "," + kind.stage + "=" + kind.name;
  if (!kind.test_with.empty()) cells += "," + kind.test_with;
  for (const std::string& key : kind.keys)
    if (parameter_of(key).is_file) cells += "," + key + "=FILE";
  return cells;
}

std::vector<std::string> values_of(const Parameter& p) {
  if (!p.test_values.empty()) return p.test_values;
  if (p.type == ValueType::flag) return {"yes", "no"};
  return p.type == ValueType::word ? p.words : std::vector<std::string>{};
}

/// `text`: what it begins with; stages of `fixed` are chosen already.
std::string random_record(const Dice& dice, std::string text, const std::string& fixed,
                          const DrawnKinds& drawn) {
  for (const Parameter* p : parameters()) {
    if (p->type != ValueType::kind || p->key == fixed || dice.roll(p->key) >= kKindChanges)
      continue;
    std::map<double, const KindInfo*, std::greater<>> kinds;
    for (const KindInfo* kind : kinds_of_stage(p->key))
      if (drawn(*kind)) kinds[dice.roll(p->key + "=" + kind->name)] = kind;
    for (const auto& [roll, kind] : kinds)
      if (extend(text, cells_of(*kind))) break;
  }
  for (const Parameter* p : parameters()) {
    const std::vector<std::string> values = values_of(*p);
    if (values.empty() || dice.roll(p->key) >= kValueChanges) continue;
    const double which = dice.roll(p->key + ", its value") * static_cast<double>(values.size());
    if (text.find("," + p->key + "=") == std::string::npos)
      extend(text, "," + p->key + "=" + values[static_cast<size_t>(which)]);
  }
  return text;
}

}  // namespace

bool has_reference(const KindInfo& kind) {
  const auto stage = reference::references().find(kind.stage);
  return stage != reference::references().end() && stage->second.contains(kind.name);
}

std::vector<std::string> random_records(size_t count, uint64_t seed, const DrawnKinds& drawn) {
  std::vector<std::string> records;
  for (size_t at = 0; at < count; ++at)
    records.push_back(random_record(Dice(seed, at), "snapkv", "", drawn));
  return records;
}

std::vector<std::string> random_records_with(const KindInfo& kind, size_t count, uint64_t seed) {
  const std::string name = kind.stage + "=" + kind.name;
  std::set<std::string> records;
  for (size_t at = 0; records.size() < count && at < 4 * count; ++at) {
    std::string begin = "snapkv";
    if (!extend(begin, cells_of(kind))) continue;
    records.insert(random_record(Dice(seed + XXH3_64bits(name.data(), name.size()), at), begin,
                                 kind.stage, has_reference));
  }
  return {records.begin(), records.end()};
}

size_t asked_records(size_t usual) {
  const char* const count = std::getenv("KVSIM_RECORDS");
  return count == nullptr ? usual : std::strtoull(count, nullptr, 10);
}

}  // namespace kvsim::test
