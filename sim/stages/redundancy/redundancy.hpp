#pragma once
#include <span>
#include <vector>

#include "sim/stages/kind.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// How much of an entry other entries of its head say, too (policies.md 5.6). It lowers the score.
class Redundancy : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // sees no budget
  virtual bool changes_nothing() const { return false; }
  /// Of m entries with these keys [m][d], in ascending position.
  virtual std::vector<double> of_keys(const Settings& settings, std::span<const float> keys,
                                      int64_t dim) const = 0;
  /// Brings the redundancy of one head's candidates to the scale of their scores.
  virtual void level(std::span<double> /*redundancy*/) const {}
  /// The score of an entry and its redundancy as one number.
  virtual double mix(const Settings& settings, double score, double redundancy) const = 0;
};

}  // namespace kvsim
