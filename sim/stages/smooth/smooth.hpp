#pragma once
#include <span>

#include "sim/core/position_drift.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Movement of the best entries over the observing rows, which an adaptive smoothing follows.
enum class Drift {
  none,
  indicator,  ///< of the rows that enter `aggregate`, over the candidates
  attention,  ///< of the attention rows, over all keys that the query sees
};

/// Over neighbouring candidates (policies.md 5.5).
class Smooth : public Kind {
 public:
  using Kind::Kind;
  virtual bool only_before_aggregate() const { return false; }
  virtual Drift drift() const { return Drift::none; }
  /// Budgets nest unless it follows the best entries of the budget at hand.
  bool nests(const Settings&) const override { return drift() == Drift::none; }
  /// `drift` is Delta = D_front - D_rear; of no rows for kinds that do not follow one.
  virtual void apply(const Settings& settings, const PositionDrift& drift,
                     std::span<const double> in, std::span<double> out) const = 0;
  virtual bool changes_nothing() const { return false; }
  bool goes_on() const override { return drift() == Drift::none && !only_before_aggregate(); }
};

}  // namespace kvsim
