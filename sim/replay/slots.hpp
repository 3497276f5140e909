#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/core/kept_sets.hpp"
#include "sim/core/rotation.hpp"
#include "sim/stages/merge/slot_cache.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Slots that one owner (a KV head, or a query head) holds of the prompt when keys, values or
/// weights are no longer those of the trace.
struct OwnerSlots {
  Table<float> k;           ///< [slots][d]
  Table<float> v;           ///< [slots][dv]
  Table<float> log_weight;  ///< [query heads of the owner][slots] lambda, or empty: all 0
};

/// The compressed cache of one layer, prompt part.
struct LayerSlots {
  bool per_query_head = false;
  std::vector<OwnerSlots> owners;
};

/// The kept entries as slots, unchanged.
LayerSlots slots_of(const LayerWork& work, const KeptSets& kept);
/// Slots that were merged, log-weights included.
LayerSlots as_slots(const std::vector<SlotCache>& owners, bool per_query_head,
                    const Settings& settings);

/// positions=cache (policies.md 2): slot r is re-rotated to position r and query t to its own slot
/// number. Rotary attention sees differences of positions only, so the same logits result when
/// queries and later keys stay and slot r moves to r + n - (slots of its owner), which is what is
/// done. Needs work.rotation().
void rotate_to_cache_positions(const LayerWork& work, const KeptSets& kept, LayerSlots& slots);

/// The softmax behind the outputs of attention over slots: logits with log-weights, and
/// log-sum-exp.
struct SlotSoftmax {
  struct Logits {
    Buffer<float>
        values;  ///< [heads of the owner * steps][columns]; -inf where later than the query
    int64_t columns = 0;  ///< its slots and all later entries
    const float* row(int64_t r) const { return values.data() + r * columns; }
  };
  std::vector<Logits> owners;
  Table<double> log_sum_exp;  ///< [Hq][steps], sink included
};

/// The plain general form of compressed attention (metrics.md 2), for one set of slots after the
/// other: what all of them share of the layer is read once.
class SlotAttention {
 public:
  /// `work` must outlive it.
  explicit SlotAttention(LayerWork& work);
  /// For later steps first..first+steps-1, out[Hq][steps][dv] is z^ over the slots present and
  /// every later entry up to the query itself.
  void run(const LayerSlots& slots, int64_t first, int64_t steps, float* out,
           SlotSoftmax* softmax = nullptr);

 private:
  void read_queries(int64_t first, int64_t steps);

  LayerWork& work_;
  std::vector<Table<float>> later_k_, later_v_;  ///< per KV head [N - n][d], [N - n][dv]
  Range steps_;                                  ///< whose queries are here
  Table<float> queries_;                         ///< [Hq * steps][d]
};

/// Does some owner keep less than the prompt?
bool leaves_out_entries(const LayerWork& work, const KeptSets& kept);

/// Does the record change keys or values of what it kept of this layer?
bool changes_entries(const LayerWork& work, const KeptSets& kept, const Settings& settings);

/// Does the layer keep every entry as it is, at every later step? Then attention is that of the
/// full cache. (With everything kept, positions=cache moves nothing.)
bool leaves_cache_alone(const LayerWork& work, const KeptSets& kept, const Settings& settings);

}  // namespace kvsim
