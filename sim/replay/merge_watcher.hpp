#pragma once
#include <vector>

#include "sim/replay/merge_tally.hpp"
#include "sim/replay/slots.hpp"
#include "sim/stages/merge/slot_cache.hpp"

namespace kvsim {

/// Compares merged slots with their members in the full cache, while attend_slots() runs over all
/// later steps. Everything given must outlive it.
class MergeWatcher {
 public:
  /// `slots`: what is attended to, made of `owners`; `importance`: [Hq][>= n] weight of each
  /// entry; `log_sum_exp` [Hq][T] and `z` [Hq][T][dv] of the full cache.
  MergeWatcher(const LayerWork& work, const std::vector<SlotCache>& owners, const LayerSlots& slots,
               const Table<float>& importance, const Table<double>& log_sum_exp,
               const std::vector<float>& z, MergeTally& tally);
  SlotWatcher watch();

 private:
  struct Owner {
    std::vector<int64_t> slot;     ///< merged slots
    std::vector<size_t> end;       ///< of each one's members in `member`
    std::vector<uint32_t> member;  ///< entries
    std::vector<uint8_t> own;      ///< 1: the entry at whose position the slot sits
  };
  /// What one head needs at every step.
  struct Head {
    Table<float> logits;  ///< [T][members of the head's owner]
    Table<float> values;  ///< [members][dv]; only where changes are wanted
  };
  Table<float> member_logits(int head) const;
  Table<float> member_values(int head) const;
  void see_change(int head, int64_t step, size_t slot, double attention, double defect);
  void see(int head, int64_t step, std::span<const float> slots, double log_sum_exp);
  size_t owner_of(int head) const { return static_cast<size_t>(head / heads_per_owner_); }

  const LayerWork& work_;
  const LayerSlots& slots_;
  const Table<float>& importance_;
  const Table<double>& full_;
  const std::vector<float>& z_;
  MergeTally& tally_;
  int heads_per_owner_;
  std::vector<Owner> owners_;
  std::vector<Head> heads_;  ///< made at a head's first step, freed at its last
};

}  // namespace kvsim
