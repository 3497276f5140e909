#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace kvsim {

/// What one policy keeps of one layer's prompt at one budget.
struct KeptSets {
  bool per_query_head = false;                    ///< owners are query heads (granularity=query)
  std::vector<std::vector<uint32_t>> owners;      ///< kept prompt entries, ascending, per owner
  std::vector<int64_t> tied;                      ///< tied_at_threshold, per owner
  std::vector<std::vector<uint32_t>> guarded;     ///< protected entries that were kept, per owner,
                                                  ///< ascending (for --scope evictable)
  bool chosen_per_step = false;                   ///< oracle-step: a set per step, not this one
};

/// Kept sets of one layer: [record][budget].
using LayerKept = std::vector<std::vector<std::shared_ptr<const KeptSets>>>;

}  // namespace kvsim
