#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/core/kept_sets.hpp"

namespace kvsim {

/// What one owner (a KV head, or a query head) holds of the prompt when keys, values or weights are
/// no longer those of the trace.
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

/// Rotates a key by a number of positions: pairs (x_j, x_{j+d/2}), or (x_2j, x_2j+1) when
/// interleaved, turn by positions * inv_freq[j].
void rotate_key(const TraceInfo& info, int64_t positions, std::span<float> key);

/// The kept entries as slots, unchanged.
LayerSlots slots_of(const LayerWork& work, const KeptSets& kept);

/// positions=cache (policies.md 2): slot r is re-rotated to position r and query t to its own slot
/// number. Rotary attention sees differences of positions only, so the same logits result when
/// queries and later keys stay and slot r moves to r + n - (slots of its owner), which is what is
/// done. Needs info().rope_inv_freq.
void rotate_to_cache_positions(const TraceInfo& info, const KeptSets& kept, LayerSlots& slots);

/// The softmax behind the outputs of attend_slots(): logits with log-weights, and log-sum-exp.
struct SlotSoftmax {
  std::vector<Table<float>> logits;  ///< per owner [its heads * steps][slots and later entries];
                                     ///< -inf where later than the query
  Table<double> log_sum_exp;         ///< [Hq][steps], sink included
};

/// The plain general form of compressed attention (metrics.md 2): for later steps
/// first..first+steps-1, out[Hq][steps][dv] is z^ over the slots present and every later entry up
/// to the query itself.
void attend_slots(LayerWork& work, const LayerSlots& slots, int64_t first, int64_t steps,
                  float* out, SlotSoftmax* softmax = nullptr);

}  // namespace kvsim
