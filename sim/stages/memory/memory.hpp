#pragma once
#include <span>

#include "sim/stages/kind.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Memory of what earlier compressions said of a slot, beside what this one says (policies.md 5.6).
class Memory : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // sees no budget
  virtual bool changes_nothing() const { return false; }
  /// Brings the scores of one head's candidates to the scale on which they are remembered.
  virtual void level(std::span<double> scores) const = 0;
  /// Joins what was remembered of a slot and its score now, both on that scale.
  virtual double join(const Settings& settings, double remembered, double now) const = 0;
};

}  // namespace kvsim
