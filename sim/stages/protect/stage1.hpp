#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/stages/kind.hpp"
#include "sim/stages/scored_layer.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// What a first selection stage sees of one owner.
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
