#pragma once
#include <string>
#include <vector>

#include "analysis/drift.hpp"
#include "sim/backend/layer_work.hpp"
#include "sim/policy/prepared_record.hpp"

namespace kvsim {

/// What the observing queries of ReST-KV's window see of one layer, row by row.
struct WindowDynamics {
  std::vector<Drift> drift;  ///< per indicator, [budget] inside
  Table<double> map;         ///< [rows][parts of the prompt] output change, mean over heads and
                             ///< the part's candidates; NaN where it has none
};

/// Reads the window of `restkv` (policies.md 5.5) for the measure of drift.
class DriftRows {
 public:
  static const std::vector<std::string>& indicators();  ///< names, in the order of the results
  static std::vector<std::string> records();            ///< whose window is read

  DriftRows(const TraceInfo& info, std::vector<int> layers, const std::vector<Budget>& budgets,
            std::vector<Range> parts);
  const std::vector<int64_t>& positions() const;  ///< of the window's queries
  WindowDynamics of_layer(LayerWork& work) const;

 private:
  const Segment& segment() const;

  const TraceInfo& info_;
  std::vector<int> layers_;
  std::vector<Budget> budget_;  ///< one at which something is evicted
  Preparation preparation_;
  PreparedRecord record_;
  std::vector<int64_t> best_;  ///< K of each budget
  std::vector<Range> parts_;
};

}  // namespace kvsim
