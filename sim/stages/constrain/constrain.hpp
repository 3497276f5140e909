#pragma once
#include <string>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/core/layer_trace.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {
namespace keys {
extern const Declare fair_scores;
}
enum class FairScores { local, unconstrained };  // words of fair_scores

/// Entries that `constrain` divides among the segments of one owner.
struct ShareRequest {
  int64_t budget = 0;                  ///< b of the owner
  int64_t sinks = 0;                   ///< kept in the first segment before dividing
                                       ///< (indicator=position), else 0
  std::vector<int64_t> sizes;          ///< entries of each segment
  std::vector<int64_t> unconstrained;  ///< kept per segment by the unconstrained record;
                                       ///< only for kinds that compare with it; empty while
                                       ///< budgets are not known yet: shares are the fair ones
  bool position = false;               ///< indicator=position: its own division
};

/// Cuts the prompt into segments and divides budgets over them (policies.md 8).
class Constrain : public Kind {
 public:
  using Kind::Kind;
  virtual bool cuts() const { return true; }
  bool goes_on() const override { return !cuts(); }
  bool nests(const Settings&) const override { return !cuts(); }
  virtual bool compares_with_unconstrained(const Settings&) const { return false; }
  /// Scores come from the unconstrained record whatever `fair_scores` says.
  virtual bool keeps_scores(const Settings& settings) const {
    return settings.word<FairScores>(keys::fair_scores) == FairScores::unconstrained;
  }
  /// Ranges of the segments, covering [0, n).
  virtual std::vector<Range> segments(const Settings& settings, const std::vector<Span>& spans,
                                      int64_t entries) const = 0;
  virtual std::vector<int64_t> shares(const Settings& settings,
                                      const ShareRequest& request) const = 0;
};

}  // namespace kvsim
