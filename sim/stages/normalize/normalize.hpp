#pragma once
#include "sim/core/array.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {

/// Divides scores by a sum of weights (policies.md 5.8); a zero divisor leaves them. Some kinds go
/// on with the scores themselves.
class Normalize : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // sees no budget
  virtual bool changes_nothing() const { return false; }
  /// Is every entry divided by a sum of its own? Other sums leave a head's order as it is.
  virtual bool per_entry() const { return false; }
  /// Both [owners][n]; only `candidates` count and change.
  virtual void apply(const Table<double>& weights, Range candidates,
                     Table<double>& scores) const = 0;
  /// Changes the weighted scores [owners][n] themselves.
  virtual void finish(Range /*candidates*/, Table<double>& /*scores*/) const {}
};

}  // namespace kvsim
