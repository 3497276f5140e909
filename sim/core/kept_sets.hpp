#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim {

/// Entries that one policy keeps of one layer's prompt at one budget.
struct KeptSets {
  bool per_query_head = false;                ///< owners are query heads (granularity=query)
  std::vector<std::vector<uint32_t>> owners;  ///< kept prompt entries, ascending, per owner
  std::vector<int64_t> tied;                  ///< tied_at_threshold, per owner
  /// Per owner, ascending: entries kept for their place (sinks, window, recent, whitelist), which
  /// --scope evictable leaves out, and those kept for their deviation (std_keep).
  std::vector<std::vector<uint32_t>> guarded;
  std::vector<std::vector<uint32_t>> spread;
  bool chosen_per_step = false;  ///< oracle-step: a set per step, not this one
  int64_t budget = 0;            ///< B of the record
  std::vector<int64_t> places;   ///< b of each owner; empty: nothing ever leaves
  /// Per owner and kept entry the entries that become one slot with it, ascending; only where the
  /// policy chooses sets instead of entries.
  std::vector<std::vector<std::vector<uint32_t>>> sets;
  /// Per owner, ascending: entries that are part of another's slot; empty before merging.
  std::vector<std::vector<uint32_t>> merged;
  /// Per owner, ascending: kept entries whose slot holds others, too. No other owner has that slot,
  /// whatever it keeps of the same entry; empty before merging.
  std::vector<std::vector<uint32_t>> own;
};

/// Kept sets of one layer: [record][budget].
using LayerKept = std::vector<std::vector<std::shared_ptr<const KeptSets>>>;

/// One slot that two entries became, as it was made: for KeepKV's bound (metrics.md 3).
struct PairMerge {
  int first_head = 0;     ///< query heads that read the slot: first_head ..
  int heads = 1;          ///< .. first_head + heads - 1
  uint32_t from = 0;      ///< entry e that lost its place
  uint32_t into = 0;      ///< entry c whose slot it joined
  int64_t merged_at = 0;  ///< position of the newest query when they were merged
  int64_t last = std::numeric_limits<int64_t>::max();  ///< last query that meets just this pair
  double log_score_from = 0;  ///< ln s^ of the entries when they were merged
  double log_score_into = 0;
  double scale = 1;          ///< f of Eq. 7
  double log_weight = 0;     ///< lambda of the slot
  std::vector<float> key;    ///< [d] of the slot
  std::vector<float> value;  ///< [dv]
};

}  // namespace kvsim
