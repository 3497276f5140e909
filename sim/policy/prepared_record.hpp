#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/policy/record.hpp"
#include "sim/policy/score_plan.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/constrain/constrain.hpp"

namespace kvsim {

/// One record at one budget.
struct PreparedBudget {
  int64_t entries = 0;     ///< B
  int64_t places = 0;      ///< of a head that keeps the whole prompt: n, or more while decoding
  int64_t window = 0;      ///< m
  bool keeps_all = false;  ///< nothing is evicted
  size_t plan = 0;         ///< its ScorePlan
  size_t variant = 0;      ///< of the plan's free_slots
  bool is_count = false;   ///< typed as a count, not as a ratio
  double dropped = 0;      ///< 1 - rho
  int64_t mass_cap = 0;    ///< see Stage1Request
  double kvpress_kept = 0;
  Table<int64_t> across;  ///< [layers][owners] budgets of kinds that work across layers
};

/// One record of the run, with all that is known of it before the first layer is read.
struct PreparedRecord {
  Settings settings;
  std::string title;            ///< canonical record, for messages
  bool of_query_heads = false;  ///< they own the kept sets
  bool ties_by_raw = false;     ///< equal scores: by those without their prior
  bool by_unweighted = false;   ///< `allocate` ranks by the scores before `weight`
  bool rescored = false;        ///< segments are scored on their own
  std::vector<int> layers;      ///< layers that take part (not skipped)
  std::vector<Range> whitelist;
  std::vector<Range> ranges;  ///< segments that share the budget
  int64_t owners = 0;
  std::vector<PreparedBudget> budgets;
  std::vector<Budget> asked;  ///< its own, or those of the run
  int unconstrained = -1;     ///< index of the record it is compared with
  template <class Stage>
  const Stage& stage() const {
    return chosen<Stage>(settings);
  }
  bool skips(int layer) const;
};

/// B: exact, or as kvpress computes it in IEEE doubles (policies.md 3).
int64_t budget_entries(const Settings& settings, const Budget& budget, int64_t n);

/// A record without its constraint, where the constraint compares with what that would keep.
std::optional<Record> unconstrained(const Record& record);

/// Prepares records for a trace and collects the scoring they share.
class Preparation {
 public:
  Preparation(const TraceInfo& info, const std::vector<int>& layers,
              const std::vector<Budget>& budgets)
      : info_(info), layers_(layers), budgets_(budgets) {}

  PreparedRecord prepare(const Record& record);
  const std::vector<ScorePlan>& plans() const { return plans_; }
  /// Segments in which scoring runs; each votes with its own share of the window (policies.md 8).
  std::vector<Segment> segments(const PreparedRecord& record, int64_t window) const;

 private:
  PreparedBudget prepare(const PreparedRecord& record, const Budget& budget) const;
  ScorePlan plan_of(const PreparedRecord& record, int64_t window) const;
  size_t share_plan(ScorePlan plan);

  const TraceInfo& info_;
  const std::vector<int>& layers_;
  const std::vector<Budget>& budgets_;
  std::vector<ScorePlan> plans_;
  std::map<std::string, size_t> by_key_;
};

}  // namespace kvsim
