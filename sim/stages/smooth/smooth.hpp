#pragma once
#include <span>

#include "sim/stages/kind.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// What an adaptive smoothing follows: the movement of the best entries over the observing rows.
enum class Drift {
  none,
  indicator,    ///< of the rows that enter `aggregate`, over the candidates
  attention,    ///< of the attention rows, over all keys that the query sees
};

/// Over neighbouring candidates (policies.md 5.5).
class Smooth : public Kind {
 public:
  using Kind::Kind;
  virtual bool only_before_aggregate() const { return false; }
  virtual Drift drift() const { return Drift::none; }
  /// `drift_tokens` is Delta = D_front - D_rear; 0 for kinds that do not follow a drift.
  virtual void apply(const Settings& settings, double drift_tokens, std::span<const double> in,
                     std::span<double> out) const = 0;
  virtual bool changes_nothing() const { return false; }
};

}  // namespace kvsim
