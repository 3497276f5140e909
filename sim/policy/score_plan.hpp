#pragma once
#include <set>
#include <string>
#include <vector>

#include "sim/stages/scored_layer.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Plan that turns an indicator's rows into one score per owner and entry.
enum class ScoringStep { smooth, aggregate, group };

/// Smooth, aggregate and group in the order in which a record takes them (its key `order`).
class ScoringSteps {
 public:
  explicit ScoringSteps(const Settings& settings);

  const std::vector<ScoringStep>& all() const { return steps_; }
  bool starts_with(ScoringStep step) const { return steps_.front() == step; }
  /// Does `step` work on the rows of single queries?
  bool before_aggregate(ScoringStep step) const;
  /// Is `step` the first to work on aggregated rows?
  bool directly_after_aggregate(ScoringStep step) const;
  std::vector<ScoringStep> after_aggregate() const;

 private:
  std::vector<ScoringStep>::const_iterator aggregate() const;

  std::vector<ScoringStep> steps_;
};

/// Scoring that several records may share: the stages from `queries` to `normalize` (policies.md
/// 4), with everything resolved that does not depend on the layer.
///
/// `settings` holds what those stages declare that they read and nothing else, so that equal plans
/// mean equal scores: a stage that read more would throw.
struct ScorePlan {
  /// The part of a record's settings that scoring may read; of `allocate`'s when it watches rows.
  static Settings read_by_scoring(const Settings& record, bool watches);

  Settings settings;
  ScoringSteps steps;
  std::vector<Segment> segments;
  /// K = max(B - m, 0) of each variant, for smoothing that follows the drift of the K best; one
  /// variant for every other record.
  std::vector<int64_t> free_slots = {0};
  double dropped = 0;              ///< 1 - rho, where the indicator follows the budget
  bool wants_unweighted = false;   ///< scores before `weight`, too
  bool wants_mass = false;         ///< attention of owners, and on the window
  bool wants_deviation = false;    ///< over the queries
  bool wants_statistic = false;    ///< what `allocate` watches
  bool wants_token_class = false;  ///< what the tokens are
  bool for_survey = false;         ///< some record needs it of all layers before any is replayed
  std::set<int> layers = {};       ///< those that some record does not skip

  bool looks_ahead() const;
  std::string key() const;           ///< names all that scores depend on
  std::string grouping_key() const;  ///< the same of what they are up to `group`

 private:
  std::string key_of(const Settings& read) const;
};

}  // namespace kvsim
