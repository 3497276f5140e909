#pragma once
#include <string>
#include <vector>

#include "analysis/best_setting.hpp"
#include "io/paper_table.hpp"
#include "run/sweep/sweep_run.hpp"

namespace kvsim {

/// One line of the table of best settings: of one preset at one budget by one criterion.
struct BestRow {
  std::string preset;
  size_t settings = 0;
  Criterion criterion;
  std::string budget;  ///< its label
  std::string record;  ///< the best; empty: no setting holds what the budget gives
  size_t off_budget;   ///< settings that hold over a twentieth more or less, and are not ranked
  double held;         ///< what the best holds over what the budget gives, mean over traces
  BestSetting found;
  /// Of the settings that are not ranked the best where it holds what the budget gives, between its
  /// own budgets; its gain is over `record`. Empty: none holds less there and more here.
  std::string equal_bytes_record{};
  BestSetting equal_bytes{};
  size_t nowhere = 0;  ///< of `off_budget`, without such a place
};

struct BestTable {
  size_t traces = 0;
  std::vector<std::string> measured;  ///< measures that every results file has
  std::string stream_layers;          ///< of some results file: see stream_error_layers()
  std::vector<BestRow> rows;
  Provenance from;
};

/// Reads the results files of a finished sweep and judges by `measures`. Presets with one setting,
/// budgets that keep everything, and criteria that do not tell the settings apart are left out;
/// seeds of one trace are averaged.
BestTable best_settings(const SweepPlan& plan, const SweepRun& sweep,
                        const std::vector<std::string>& measures);

}  // namespace kvsim
