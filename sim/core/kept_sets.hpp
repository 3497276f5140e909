#pragma once
#include <cstdint>
#include <memory>
#include <vector>

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

}  // namespace kvsim
