#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/scored_layer.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {
namespace keys {
extern const Declare whitelist, first_layer_recent, std_keep, protected_rank;
}
enum class ProtectedRank { guaranteed, layer_max };  // words of protected_rank

/// Where protection of one owner applies: the whole prompt, or a segment of a fair record.
struct ProtectRequest {
  const Settings* settings = nullptr;
  const std::vector<Range>* whitelist = nullptr;  ///< resolved ranges
  int layer = 0;                                  ///< the model's index l
  Range range;                                    ///< entries of the segment
  bool first = true;                              ///< the segment that holds the sinks
  bool last = true;                               ///< the segment that holds `recent`
  int64_t window = 0;                             ///< the segment's own window
  int64_t budget = 0;                  ///< B, or the segment's share: what fractions multiply
  std::span<const double> deviation;   ///< [n] of the owner, for std_keep; may be empty
  std::span<const uint8_t> candidate;  ///< [n]
};

/// How many of the newest entries a layer protects beside the window (policies.md 6): `recent`, in
/// the model's first layer `first_layer_recent` where that is more. Fractions multiply `budget`.
int64_t newest_protected(const Settings& settings, int layer, int64_t budget);

/// Protected entries in the order in which they are granted when they do not all fit: whitelist;
/// sinks, lowest first; window and recent, newest first; std_keep, largest first (policies.md 6).
std::vector<uint32_t> protected_entries(const ProtectRequest& request);

/// View of one owner by a first selection stage.
struct Stage1Request {
  const Settings* settings = nullptr;
  const ScoredLayer* scored = nullptr;
  int64_t owner = 0;
  Range range;                  ///< entries of the segment
  int64_t budget = 0;           ///< before_allocate: B; after: b, or the segment's share
  int64_t protected_count = 0;  ///< |P| in the range
  const std::vector<uint8_t>* is_protected = nullptr;    ///< [n]
  const std::vector<uint32_t>* by_unweighted = nullptr;  ///< best first, after_allocate only
  int64_t mass_cap = 0;                                  ///< floor((n-m) * rho - m)
  double kvpress_kept = 0;                               ///< (1.0 - r) * n in double
  bool budget_is_count = false;
};

/// Entries that are forced into the kept set before the ranking by score (policies.md 6).
class Stage1 : public Kind {
 public:
  using Kind::Kind;
  virtual bool forces_nothing() const { return false; }
  bool goes_on() const override { return forces_nothing(); }
  bool nests(const Settings&) const override { return forces_nothing(); }
  virtual bool uses_unweighted() const { return false; }
  virtual bool uses_mass() const { return false; }
  virtual bool uses_token_classes() const { return false; }  ///< of ScoredLayer
  /// Forced entries, best first; they count among what `allocate` marks.
  virtual std::vector<uint32_t> before_allocate(const Stage1Request&) const { return {}; }
  virtual std::vector<uint32_t> after_allocate(const Stage1Request&) const { return {}; }
};

}  // namespace kvsim
