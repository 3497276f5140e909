#pragma once
#include "sim/stages/kind.hpp"

namespace kvsim {

/// A budget as typed: `0.2` and `20%` are ratios in (0, 1], an integer is a count >= 1.
struct Budget {
  std::string label;  ///< one text per value: "0.2" for .2, 0.20 and 20%, "1.0" for 100%, "512"
  bool is_ratio = false;
  Decimal amount;

  static Budget parse(std::string_view text);
  bool operator==(const Budget&) const = default;
  int64_t entries(int64_t n) const;  ///< B with rounding=exact; B > n is cut to n
  double ratio(int64_t n) const;     ///< the typed ratio, or min(c, n)/n
};

/// A policy record: PRESET[:VARIANT][,key=value]... with every key assigned (policies.md 2).
struct Record {
  std::string preset;
  std::string variant;  ///< empty for a bare preset
  Settings settings;
  /// Budgets in the place of the run's, one for each; empty: these (--equal-bytes).
  std::vector<Budget> own_budgets = {};
  const std::vector<Budget>& budgets(const std::vector<Budget>& of_run) const {
    return own_budgets.empty() ? of_run : own_budgets;
  }

  /// Parses and checks a typed record; a mistake is a usage error naming the nearest valid words.
  static Record parse(std::string_view text);

  /// Preset, variant, and the keys whose values differ from the preset's, in canonical order.
  std::string canonical() const;
};

/// Ratio of a budget for these records together: c/n of a count above n, where a record fills its
/// places while decoding.
double budget_ratio(const Budget& budget, const std::vector<Record>& records, int64_t n);

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
/// that tests hold policies to: replay looks at the sets themselves (sim/replay/prefill.hpp).
bool budgets_nest(const Settings& settings);

/// Is exactly the budget kept: layers * heads * B entries in all?
bool spends_budget(const Settings& settings);

/// Checks what no single key can: combinations of kinds, and typed keys that nothing reads.
/// `text` is the record as typed, `original` the preset's own values.
void check_record(const std::string& text, const Settings& original,
                  const std::set<std::string>& typed, const Settings& settings);

}  // namespace kvsim
