#pragma once
#include <span>
#include <vector>

#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace keys {
extern const Declare merge_order;
}
enum class MergeOrder { evict_first, merge_first };  // words of merge_order

inline bool merges_first(const Settings& settings) {
  return settings.word<MergeOrder>(keys::merge_order) == MergeOrder::merge_first;
}

/// One owner's prompt, to be merged before anything is evicted (policies.md 9).
struct MergeFirstRequest {
  const float* keys = nullptr;  ///< [n][d]
  int64_t key_dim = 0;
  std::span<const double> score;      ///< [n] higher = keep
  std::span<const uint32_t> order;    ///< those that are ranked, best first
  std::span<const uint32_t> guarded;  ///< kept for sure, in the order of their grant
  int64_t budget = 0;                 ///< b
  double threshold = 0;               ///< cosine above which keys are alike
};

/// Ranked entries that are not kept for sure join, the worst first, the entry of the most similar
/// key until b are left; then sets stay by the sum of their scores. At most b sets, whose pivots
/// are kept.
Clusters merge_first(const MergeFirstRequest& request);

}  // namespace kvsim
