#pragma once
#include <vector>

#include "sim/replay/full_attention.hpp"
#include "sim/replay/merge_tally.hpp"
#include "sim/replay/slots.hpp"
#include "sim/stages/merge/slot_cache.hpp"

namespace kvsim {

/// Compares merged slots with their members in the full cache. Everything given must outlive it.
class MergeWatcher {
 public:
  /// `slots`: what is attended to, made of `owners`; `importance`: [Hq][>= n] weight of each
  /// entry; `z`: [Hq][T][dv] of the full cache.
  MergeWatcher(LayerWork& work, const std::vector<SlotCache>& owners, const LayerSlots& slots,
               const Table<float>& importance, const std::vector<float>& z, FullAttention& full,
               MergeTally& tally);

  /// Later steps first..first+steps-1, in ascending order from call to call.
  void see(int64_t first, int64_t steps, const SlotSoftmax& softmax);

 private:
  struct Owner {
    std::vector<int64_t> slot;     ///< merged slots
    std::vector<size_t> end;       ///< of each one's members in `member`
    std::vector<uint32_t> member;  ///< entries
    std::vector<uint8_t> own;      ///< 1: the entry at whose position the slot sits
  };
  /// One query of one head: the full cache's attention and logits, and its own on the slots.
  struct Row {
    int head = 0;
    int64_t step = 0;
    const float* attention = nullptr;  ///< [n]
    const float* full_logits = nullptr;
    double full_log_sum_exp = 0;
    const float* logits = nullptr;  ///< of the slots
    double log_sum_exp = 0;
  };
  std::span<const uint32_t> members(const Owner& owner, size_t slot) const;
  void see_row(const Row& row);
  void see_change(const Row& row, size_t slot, double together, double defect);
  size_t owner_of(int head) const { return static_cast<size_t>(head / heads_per_owner_); }

  LayerWork& work_;
  const LayerSlots& slots_;
  const Table<float>& importance_;
  const std::vector<float>& z_;
  FullAttention& full_;
  MergeTally& tally_;
  int heads_per_owner_;
  std::vector<Owner> owners_;
  std::vector<Table<float>> values_;  ///< per KV head [n][dv], only where changes are wanted
};

}  // namespace kvsim
