#pragma once
#include <cstdint>
#include <vector>

#include "sim/backend/backend.hpp"

namespace kvsim {

/// Prompt entries that a policy dropped: merged ones are still there.
struct DroppedEntries {
  bool per_query_head = false;  ///< owners are query heads
  Table<uint8_t> owners;        ///< [owners][n] 1: dropped
};

/// How many of the entries that later queries attend to most had been dropped (metrics.md 5.2).
/// Top_t of a head are the max(1, floor(0.2 n)) prompt entries of largest attention at step t, the
/// more recent first on ties.
class LateImportance {
 public:
  struct Result {
    double share = 0;   ///< |E and Top_t| / |Top_t|, mean over heads and steps
    double chance = 0;  ///< what random eviction would give: |E| / n, mean over heads
    double recall = 0;  ///< |E and any Top_t| / |E|, mean over the heads where E is not empty
  };

  LateImportance(std::vector<DroppedEntries> outcomes, int query_heads, int64_t entries,
                 int64_t steps);
  void add(const AttentionBlock& block, int64_t first_row);
  Result result(size_t outcome) const;

 private:
  std::span<const uint8_t> dropped(size_t outcome, int64_t head) const;

  std::vector<DroppedEntries> outcomes_;
  int64_t heads_;
  int64_t entries_;
  int64_t steps_;
  int64_t top_;
  Table<int64_t> hits_;  ///< [outcome][Hq] sum over steps of |E and Top_t|
  Table<uint8_t> ever_;  ///< [Hq][n] 1: in some Top_t
};

}  // namespace kvsim
