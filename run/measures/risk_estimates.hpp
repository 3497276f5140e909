#pragma once
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/policy/prepared_record.hpp"

namespace kvsim {

/// A way to estimate an entry's risk from the window of the prompt: the score of a record.
struct Estimator {
  const char* name;
  const char* record;
};
/// One query, the mean and the maximum over the window, the maximum with DefensiveKV's prior, and
/// DefensiveKV's own order, in which the norm of the value multiplies after the prior.
const std::vector<Estimator>& risk_estimators();

/// Estimates of one estimator on one layer. Columns outside the candidates mean nothing.
struct RiskEstimates {
  Range candidates;        ///< of the prompt's entries
  Table<double> estimate;  ///< [Hkv][n]
  Table<double> prior;     ///< [Hkv][n] what the estimate would be at the prior; empty: none
};

/// Scores of all estimators; everything given must outlive it.
class RiskScores {
 public:
  RiskScores(const TraceInfo& info, std::vector<int> layers, const SideFiles& files);
  /// Entries of a KV head that have an estimate.
  Range candidates() const;
  std::vector<RiskEstimates> of_layer(LayerWork& work) const;

 private:
  const TraceInfo& info_;
  const SideFiles& files_;
  std::vector<int> layers_;
  std::vector<Budget> budgets_;
  Preparation preparation_;
  std::vector<PreparedRecord> records_;
};

}  // namespace kvsim
