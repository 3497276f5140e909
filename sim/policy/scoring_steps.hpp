#pragma once
#include <vector>

#include "sim/stages/settings.hpp"

namespace kvsim {

/// What turns an indicator's rows into one score per owner and entry.
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

}  // namespace kvsim
