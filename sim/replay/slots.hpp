#pragma once
#include "sim/core/layer_trace.hpp"
#include "sim/core/numbers.hpp"
#include "sim/stages/merge/merge.hpp"

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

/// Later entries n..N-1 of one KV head.
inline Table<float> later_rows(const Tensor& tensor, int kv_head, int64_t n) {
  Table<float> rows(tensor.dim(1) - n, tensor.dim(2));
  tensor.read(kv_head, n, tensor.dim(1), rows.data());
  return rows;
}

/// The plain general form of compressed attention (metrics.md 2), for one set of slots after the
/// other: what all of them share of the layer is read once.
class SlotAttention {
 public:
  /// `work` must outlive it.
  explicit SlotAttention(LayerWork& work) : work_(work) {
    const LayerTrace& layer = work.trace();
    for (int kv = 0; kv < work.kv_heads(); ++kv) {
      later_k_.push_back(later_rows(layer.k, kv, work.entries()));
      later_v_.push_back(later_rows(layer.v, kv, work.entries()));
    }
  }
  /// For later steps first..first+steps-1, out[Hq][steps][dv] is z^ over the slots present and
  /// every later entry up to the query itself.
  void run(const LayerSlots& slots, int64_t first, int64_t steps, float* out,
           SlotSoftmax* softmax = nullptr) {
    const TraceInfo& info = work_.info();
    const int64_t row0 = info.first_step() + first, n = work_.entries();
    const int heads = slots.per_query_head ? 1 : work_.group_size();
    read_queries(first, steps);
    if (softmax != nullptr) {
      softmax->owners.resize(slots.owners.size());
      softmax->log_sum_exp = Table<double>(work_.query_heads(), steps);
    }
    std::vector<SlotRows> owners(slots.owners.size());
    std::vector<int64_t> seen(slots.owners.size() * static_cast<size_t>(steps));
    for (size_t o = 0; o < owners.size(); ++o) {
      const OwnerSlots& own = slots.owners[o];
      SlotRows& rows = owners[o];
      const int first_head = static_cast<int>(o) * heads;
      rows.heads = heads;
      rows.rows = steps;
      rows.queries = queries_.data() + first_head * steps * queries_.columns();
      rows.sinks = sinks_from(work_.trace(), first_head);
      const auto kv = static_cast<size_t>(first_head / work_.group_size());
      rows.segments = {{own.k.data(), own.v.data(), own.k.rows(),
                        own.log_weight.empty() ? nullptr : own.log_weight.data()},
                       {later_k_[kv].data(), later_v_[kv].data(), later_k_[kv].rows()}};
      int64_t* const ends = seen.data() + o * static_cast<size_t>(steps);
      for (int64_t s = 0; s < steps; ++s)
        ends[s] = own.k.rows() + info.query_position[row0 + s] - n + 1;
      rows.seen = ends;
      rows.outputs = out + first_head * steps * work_.value_dim();
      if (softmax == nullptr) continue;
      SlotSoftmax::Logits& logits = softmax->owners[o];
      logits.columns = rows.slots();
      rows.logits = logits.values.reserve(heads * steps * logits.columns);
      rows.log_sum_exp = softmax->log_sum_exp.row(first_head).data();
    }
    work_.backend().attend(work_.trace(), owners);
  }

 private:
  void read_queries(int64_t first, int64_t steps) {
    const Range wanted{first, first + steps};
    if (wanted == steps_) return;
    steps_ = wanted;
    const Tensor& q = work_.trace().q;
    const int64_t row0 = work_.info().first_step() + first;
    queries_ = Table<float>(work_.query_heads() * steps, q.dim(2));
    for (int h = 0; h < work_.query_heads(); ++h)
      q.read(h, row0, row0 + steps, queries_.data() + h * steps * q.dim(2));
  }

  LayerWork& work_;
  std::vector<Table<float>> later_k_, later_v_;  ///< per KV head [N - n][d], [N - n][dv]
  Range steps_;                                  ///< whose queries are here
  Table<float> queries_;                         ///< [Hq * steps][d]
};

/// Does the record change keys or values of what it kept of this layer?
bool changes_entries(const LayerWork& work, const KeptSets& kept, const Settings& settings);

/// Does the layer keep every entry as it is, at every later step? Then attention is that of the
/// full cache. (With everything kept, positions=cache moves nothing.)
bool leaves_cache_alone(const LayerWork& work, const KeptSets& kept, const Settings& settings);

/// Attention of the full cache at later steps, for what is compared with it: one set of slots after
/// the other asks for the same rows, which are computed once where they take little memory.
class FullAttention {
 public:
  /// `work` must outlive it.
  explicit FullAttention(LayerWork& work) : work_(work) {}

  /// How many steps rows() takes at a time.
  int64_t most_steps() const {
    constexpr int64_t kValues = int64_t{1} << 24;  // attention of all heads: 64 MB
    const int64_t of_step = work_.query_heads() * work_.entries();
    return std::clamp<int64_t>(kValues / of_step, 1, std::max<int64_t>(1, work_.info().steps()));
  }
  /// Later steps first..first+steps-1, logits included, per KV head; valid until the next call.
  const std::vector<AttentionBlock>& rows(int64_t first, int64_t steps) {
    const Range wanted{first, first + steps};
    if (wanted == steps_) return blocks_;
    steps_ = wanted;
    blocks_.resize(work_.kv_heads());
    AttentionRequest request;
    request.rows = ascending(steps, work_.info().first_step() + first);
    request.columns = work_.entries();
    request.logits = true;
    for (request.kv_head = 0; request.kv_head < work_.kv_heads(); ++request.kv_head)
      work_.backend().attention(work_.trace(), request, blocks_[request.kv_head]);
    return blocks_;
  }

 private:
  LayerWork& work_;
  Range steps_;  ///< those in `blocks_`
  std::vector<AttentionBlock> blocks_;
};

/// Sums over merged slots (two or more entries): of one head at one step.
struct MergeSums {
  double sag = 0, shift = 0, defect = 0, slots = 0;
  double attention = 0, importance = 0;  ///< of the full cache, on entries part of another's slot
  double value_part = 0, mass_part = 0;  ///< what slots change of the output, where it is wanted
};

/// Effect of merging on the attention at some steps (metrics.md 3). Different query heads may be
/// added in parallel; each adds its steps in ascending order.
class MergeTally {
 public:
  /// `changes`: what slots change of the output is wanted, too.
  MergeTally(int64_t heads, int64_t steps, bool changes = false)
      : changes_(changes), sums_(heads, steps), defects_(heads) {}

  bool wants_changes() const { return changes_; }

  /// Room for so many more slots of a head.
  void expect(int64_t head, int64_t slots) {
    std::vector<float>& defects = defects_[head].of_head;
    defects.reserve(defects.size() + slots);
  }
  /// Merged slots of a head at one step, added up before they are stored.
  class Row {
   public:
    /// Attention of the full cache on the members of one, attention of the compressed cache on the
    /// slot, and the log-mass defect in nats.
    void add_slot(double members, double slot, double defect) {
      sums_.sag += members - slot;
      sums_.shift += std::fabs(members - slot);
      sums_.defect += defect;
      sums_.slots += 1;
      defects_.push_back(static_cast<float>(defect));
    }
    /// Entries that are part of another's slot: their attention and importance in the full cache.
    void add_members(double attention, double importance) {
      sums_.attention += attention;
      sums_.importance += importance;
    }
    /// Change of the head's output by a slot that was added.
    void add_change(const SlotChange& change) {
      sums_.value_part += change.value_part;
      sums_.mass_part += change.mass_part;
    }

   private:
    friend class MergeTally;
    explicit Row(std::vector<float>& defects) : defects_(defects) {}

    MergeSums sums_;
    std::vector<float>& defects_;
  };
  Row row_of(int64_t head) { return Row(defects_[head].of_head); }
  void add(int64_t head, int64_t step, const Row& row) { sums_(head, step) = row.sums_; }

  /// Over query heads.
  double sum(double MergeSums::*part, int64_t step) const {
    double sum = 0;
    for (int64_t h = 0; h < sums_.rows(); ++h) sum += sums_(h, step).*part;
    return sum;
  }
  double mean(double MergeSums::*part, int64_t step) const {
    return sum(part, step) / sums_.rows();
  }
  /// Over heads and merged slots; NaN without any.
  double slot_mean(double MergeSums::*part, int64_t step) const {
    const double count = sum(&MergeSums::slots, step);
    return count > 0 ? sum(part, step) / count : kUndefined;
  }
  /// of all slots, head by head
  std::vector<double> defects() const {
    std::vector<double> all;
    for (const Defects& head : defects_)
      all.insert(all.end(), head.of_head.begin(), head.of_head.end());
    return all;
  }

 private:
  bool changes_;
  Table<MergeSums> sums_;  ///< [Hq][steps]
  /// In a cache line of its own: heads are added side by side.
  struct alignas(64) Defects {
    std::vector<float> of_head;
  };
  std::vector<Defects> defects_;
};

/// One query of one head in the full cache.
struct FullRow {
  const float* attention = nullptr;  ///< [n]
  const float* logits = nullptr;
  double log_sum_exp = 0;
};

/// Entries of one slot in the full cache, for one head and query.
struct SlotMembers {
  double attention = 0;         ///< of all
  double log_mass = 0;          ///< ln of the sum of exp(logit)
  double merged_attention = 0;  ///< of those that the slot took in
  double merged_importance = 0;
};
/// `own`: the entry at whose position the slot sits; `importance`: weight of each entry.
SlotMembers sum_members(std::span<const uint32_t> members, uint32_t own, const FullRow& full,
                        std::span<const float> importance);

/// Change of one head's output at a stored query by one merged slot, whose value is `slot`.
/// `attention`: of the full cache on its members; `defect`: its log-mass defect; `z`: [dv] output
/// of the full cache. `value_of(entry)` [dv].
template <class ValueOf>
SlotChange change_by_slot(const LayerWork& work, int head, int64_t query, const FullRow& full,
                          std::span<const uint32_t> members, double attention, double log_mass,
                          double defect, std::span<const float> slot, const float* z,
                          const ValueOf& value_of) {
  std::vector<double> mean(slot.size(), 0.0);  // of the members, by exp(logit)
  for (const uint32_t entry : members) {
    const double weight = std::exp(full.logits[entry] - log_mass);
    const std::span<const float> value = value_of(entry);
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += weight * value[c];
  }
  if (attention <= kNearlyAll)
    return slot_change<float, float>(attention, defect, mean, slot, {z, mean.size()});
  const RestAttention rest = rest_attention(work.backend(), work.trace(), head, {&query, 1},
                                            members);
  return slot_change_beside<float>(log_mass - rest.log_mass[0], defect, mean, slot,
                                   rest.mean.row(0));
}

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
    std::vector<uint32_t> own;     ///< the entry at whose position each slot sits
  };
  /// One query of one head: in the full cache, and its own logits on the slots.
  struct Row {
    int head = 0;
    int64_t step = 0;
    FullRow full;
    const float* logits = nullptr;
    double log_sum_exp = 0;
  };
  void see_row(const Row& row);
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
