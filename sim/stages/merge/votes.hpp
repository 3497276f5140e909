#pragma once
#include "sim/stages/kind.hpp"
#include "sim/stages/merge/slot_cache.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// How much attention remembers of what was merged: the log-weight lambda that is added to a
/// slot's logit (policies.md 9).
class Votes : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // nothing is chosen by it
  virtual bool weighs() const { return true; }                 ///< lambda can differ from 0
  /// lambda of a slot for head x of its owner's.
  virtual double log_weight(const SlotCache& cache, int64_t slot, int x) const = 0;
  /// Weight of a slot when its statistic is averaged with another's.
  virtual double weight(double /*entries*/) const { return 1; }
  /// Bytes that each slot needs beside its key and value, read by `heads` query heads.
  virtual double side_bytes(int heads) const = 0;
};

const Votes& votes_of(const Settings& settings);

}  // namespace kvsim
