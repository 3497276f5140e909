#pragma once
#include <cstdint>
#include <limits>
#include <vector>

namespace kvsim {

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
