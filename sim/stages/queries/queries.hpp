#pragma once
#include "sim/core/layer_trace.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/scored_layer.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Which queries observe a segment of the prompt, and which entries they score (policies.md 5.1).
class Queries : public Kind {
 public:
  using Kind::Kind;
  /// m at budget B: entries at the end of the prompt that observe and are protected.
  virtual int64_t window(const Settings&, int64_t /*budget*/, int64_t /*entries*/) const {
    return 0;
  }
  /// Fills `candidates`, `window` and `positions` of a segment whose `range` is set. `window` is
  /// the segment's own share of m.
  virtual void observe(const Settings& settings, int64_t window, const TraceInfo& info,
                       Segment& segment) const = 0;
  virtual bool observes() const { return true; }       ///< there are such queries
  virtual bool of_probe() const { return false; }      ///< they are a probe's
  virtual bool observes_all() const { return false; }  ///< every prompt query is one
  /// The newest entries observe, and are protected.
  virtual bool has_window() const { return false; }
  /// A kind with a window says itself how that depends on the budget.
  bool nests(const Settings&) const override { return !has_window(); }
};

/// Lets tokens of the record's probe observe a segment (policies.md 5.1); where the trace has no
/// such probe none do.
void observe_with_probe(const Settings& settings, const TraceInfo& info, Segment& segment);

/// Name of the record's probe.
const std::string& probe_name(const Settings& settings);

}  // namespace kvsim
