#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/policy/record.hpp"
#include "sim/policy/scoring.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/constrain/constrain.hpp"

namespace kvsim {

/// Scoring that several records may share: the stages from `queries` to `normalize` with everything
/// resolved that does not depend on the layer.
struct ScorePlan {
  Settings settings;
  std::vector<Segment> segments;
  std::vector<int64_t> free_slots;
  bool wants_unweighted = false;
  bool wants_statistic = false;
  bool for_survey = false;  ///< some record needs it of all layers before any is replayed
  std::set<int> layers;     ///< those that some record does not skip
};

/// One record at one budget.
struct PreparedBudget {
  int64_t entries = 0;     ///< B
  int64_t window = 0;      ///< m
  bool keeps_all = false;  ///< nothing is evicted
  size_t plan = 0;         ///< its ScorePlan
  size_t variant = 0;      ///< of the plan's free_slots
  Table<int64_t> across;   ///< [layers][owners] budgets of kinds that work across layers
};

/// One record of the run, with all that is known of it before the first layer is read.
struct PreparedRecord {
  Settings settings;
  std::string title;  ///< canonical record, for messages
  const Allocate* allocate = nullptr;
  const Constrain* constrain = nullptr;
  bool rescored = false;    ///< segments are scored on their own
  std::vector<int> layers;  ///< layers that take part (not skipped)
  std::vector<Range> whitelist;
  std::vector<Range> ranges;  ///< segments that share the budget
  int64_t owners = 0;
  std::vector<PreparedBudget> budgets;
  int unconstrained = -1;  ///< index of the record it is compared with
  bool skips(int layer) const;
};

/// Prepares records for a trace and collects the scoring they share.
class Preparation {
 public:
  Preparation(const TraceInfo& info, const std::vector<int>& layers,
              const std::vector<Budget>& budgets)
      : info_(info), layers_(layers), budgets_(budgets) {}

  PreparedRecord prepare(const Record& record);
  const std::vector<ScorePlan>& plans() const { return plans_; }

  /// Throws when the trace cannot serve the record, before any work.
  void check(const PreparedRecord& record) const;

 private:
  std::vector<Segment> segments(const PreparedRecord& record, int64_t window) const;
  size_t share_plan(const std::string& key, ScorePlan plan);
  void check_whitelist(const PreparedRecord& record) const;
  void check_queries(const PreparedRecord& record) const;
  void need_for_merging(const PreparedRecord& record, int64_t budget,
                        std::set<int64_t>& needed) const;

  const TraceInfo& info_;
  const std::vector<int>& layers_;
  const std::vector<Budget>& budgets_;
  std::vector<ScorePlan> plans_;
  std::map<std::string, size_t> by_key_;
};

}  // namespace kvsim
