#pragma once
#include <memory>
#include <vector>

#include "run/drift_rows.hpp"
#include "run/layer_replay.hpp"
#include "run/risk_estimates.hpp"
#include "run/study.hpp"

namespace kvsim {

/// Values of a coordinate that belongs to a measure of the attention itself; nothing for others.
std::optional<VariableValues> attention_coordinate(const std::string& name, const TraceInfo& info);

/// The measures of metrics.md 1 (risk), 5 and of key norms that a run was asked for. Each layer's
/// later steps are read once for all of them.
class AttentionStudy {
 public:
  /// Everything given must outlive it.
  AttentionStudy(const StudyOptions& options, const TraceInfo& info, const SideFiles& files);
  ~AttentionStudy();

  /// Throws when the trace does not hold the queries that a measure reads.
  void check() const;
  /// Fills the variables of one layer after its replay; `shown`: number of records in the results.
  void measure(LayerWork& work, int64_t layer, const LayerReplay& replay, size_t shown,
               Dataset& results) const;

 private:
  class LaterSteps;
  bool asked(const char* variable) const { return options_.metrics.contains(variable); }
  void write_risk(LayerWork& work, int64_t layer, const Table<double>& risk,
                  Dataset& results) const;
  void write_drift(LayerWork& work, int64_t layer, Dataset& results) const;

  const StudyOptions& options_;
  const TraceInfo& info_;
  std::unique_ptr<RiskScores> risk_;    ///< null: not asked for
  std::unique_ptr<DriftRows> drift_;
};

}  // namespace kvsim
