#pragma once
#include <span>

#include "sim/stages/kind.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// A floor under the scores of one owner's candidates (policies.md 5.7).
class Prior : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // sees no budget
  virtual bool changes_nothing() const { return false; }
  bool goes_on() const override { return changes_nothing(); }
  virtual void apply(const Settings& settings, std::span<double> scores) const = 0;
};

}  // namespace kvsim
