#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "sim/stages/kind.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {
namespace keys {
extern const Declare estimate_window;
}

/// Estimates ln s^ of what the next queries' scores s = exp(logit) of each slot will be. An owner
/// has one line of estimates per query it follows: the mean query of its heads, or every head.
/// Slots are numbered as in the SlotCache that owns the estimates.
class Estimates {
 public:
  static constexpr double kNothing = -std::numeric_limits<double>::infinity();  ///< ln 0

  virtual ~Estimates() = default;
  virtual std::unique_ptr<Estimates> copy() const = 0;
  /// One more query: its logits of all slots, -inf where a slot was not visible yet.
  virtual void see(int line, std::span<const double> logits) = 0;
  virtual double log_score(int64_t slot, int line) const = 0;
  virtual void append() = 0;
  virtual void erase(std::span<const int64_t> slots) = 0;  ///< ascending
  /// The slot became another one; its estimate goes on from this value.
  virtual void restart(int64_t slot, int line, double log_score) = 0;
};

/// How scores are predicted (policies.md 9, KeepKV Eq. 8).
class ScoreEstimate : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // nothing is chosen by it
  /// How many of the last prompt queries it starts from, at most; shares multiply B.
  virtual int64_t rows(const Settings& settings, int64_t budget) const = 0;
  /// Budgets with as many rows start alike.
  virtual std::unique_ptr<Estimates> start(const Settings& settings, int64_t budget, int lines,
                                           int64_t slots) const = 0;
};

}  // namespace kvsim
