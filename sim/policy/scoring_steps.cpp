#include "sim/policy/scoring_steps.hpp"

#include <algorithm>

#include "sim/stages/common_keys.hpp"

namespace kvsim {

ScoringSteps::ScoringSteps(const Settings& settings) {
  for (const char letter : settings.text(keys::order))
    steps_.push_back(letter == 's'   ? ScoringStep::smooth
                     : letter == 'a' ? ScoringStep::aggregate
                                     : ScoringStep::group);
}

std::vector<ScoringStep>::const_iterator ScoringSteps::aggregate() const {
  return std::ranges::find(steps_, ScoringStep::aggregate);
}

bool ScoringSteps::before_aggregate(ScoringStep step) const {
  return std::ranges::find(steps_, step) < aggregate();
}

bool ScoringSteps::directly_after_aggregate(ScoringStep step) const {
  const auto next = aggregate() + 1;
  return next != steps_.end() && *next == step;
}

std::vector<ScoringStep> ScoringSteps::after_aggregate() const {
  return {aggregate() + 1, steps_.end()};
}

}  // namespace kvsim
