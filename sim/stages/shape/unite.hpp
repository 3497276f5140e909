#pragma once
#include "sim/core/array.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {

/// Makes one score of those that the owners of a layer have for an entry, so that all of them keep
/// the same set (policies.md 5.9).
class Union : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // sees no budget
  bool goes_on() const override { return !unites(); }
  virtual bool unites() const { return true; }
  /// [owners][n]; only `candidates` count and change.
  virtual void apply(Range candidates, Table<double>& scores) const = 0;
};

}  // namespace kvsim
