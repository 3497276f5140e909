#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/policy/record.hpp"
#include "sim/replay/prefill.hpp"

namespace kvsim {

/// Records to replay, and variables to measure.
struct StudyOptions {
  std::vector<Record> records;  ///< typed order; equal ones collapse
  std::vector<Budget> budgets;  ///< typed order; equal ones collapse
  std::vector<int> layers;      ///< ascending
  uint64_t seed = 0;

  Scope scope = Scope::prompt;
  Norm importance = Norm::l1;
  double outlier = 0.5;
  std::optional<int64_t> wo_steps;  ///< 0: all; not set: by shapes
  int64_t horizon = 1;              ///< steps ahead that score estimates predict
  std::set<std::string> metrics;    ///< variables on request
  std::vector<std::string> span_complements;
  bool per_head = false;
  bool save_keep = false;

  int64_t element_bytes = 2;
  std::string equal_bytes;  ///< a form of a cache (equal_bytes.hpp); else budgets count entries
  std::optional<double> bandwidth;  ///< bytes/s
  std::optional<double> peak;       ///< flop/s

  std::string command_line;  ///< for `history`
};

}  // namespace kvsim
