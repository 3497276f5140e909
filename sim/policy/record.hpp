#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/decimal.hpp"
#include "sim/stages/settings.hpp"

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

  /// Parses and checks a typed record; a mistake is a usage error naming the nearest valid words.
  static Record parse(std::string_view text);

  /// Preset, variant, and the keys whose values differ from the preset's, in canonical order.
  std::string canonical() const;
};

/// Ratio of a budget for these records together: c/n of a count above n, where a record fills its
/// places while decoding.
double budget_ratio(const Budget& budget, const std::vector<Record>& records, int64_t n);

}  // namespace kvsim
