#pragma once
#include "sim/core/kept_sets.hpp"
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

/// Attention of the full cache at later steps, for what is compared with it: one set of slots after
/// the other asks for the same rows, which are computed once where they take little memory.
class FullAttention {
 public:
  /// `work` must outlive it.
  explicit FullAttention(LayerWork& work) : work_(work) {}

  /// How many steps rows() takes at a time.
  int64_t most_steps() const;
  /// Later steps first..first+steps-1, logits included, per KV head; valid until the next call.
  const std::vector<AttentionBlock>& rows(int64_t first, int64_t steps);

 private:
  LayerWork& work_;
  Range steps_;  ///< those in `blocks_`
  std::vector<AttentionBlock> blocks_;
};

/// Effect of merging on the attention at some steps (metrics.md 3). Different query heads may be
/// added in parallel; each adds its steps in ascending order.
class MergeTally {
 public:
  /// `changes`: what slots change of the output is wanted, too.
  MergeTally(int64_t heads, int64_t steps, bool changes = false);

  bool wants_changes() const { return !value_part_.empty(); }

  /// Room for so many more slots of a head.
  void expect(int64_t head, int64_t slots) {
    std::vector<float>& defects = defects_[static_cast<size_t>(head)].of_head;
    defects.reserve(defects.size() + static_cast<size_t>(slots));
  }
  /// Merged slots (two or more entries) of a head at one step, added up before they are stored.
  class Row {
   public:
    /// Attention of the full cache on the members of one, attention of the compressed cache on the
    /// slot, and the log-mass defect in nats.
    void add_slot(double members, double slot, double defect) {
      sag_ += members - slot;
      shift_ += std::fabs(members - slot);
      defect_sum_ += defect;
      slots_ += 1;
      defects_.push_back(static_cast<float>(defect));
    }
    /// Entries that are part of another's slot: their attention and importance in the full cache.
    void add_members(double attention, double importance) {
      attention_ += attention;
      importance_ += importance;
    }

   private:
    friend class MergeTally;
    explicit Row(std::vector<float>& defects) : defects_(defects) {}

    double sag_ = 0, shift_ = 0, defect_sum_ = 0, slots_ = 0, attention_ = 0, importance_ = 0;
    std::vector<float>& defects_;
  };
  Row row_of(int64_t head) { return Row(defects_[static_cast<size_t>(head)].of_head); }
  void add(int64_t head, int64_t step, const Row& row);
  /// Change of the head's output by a slot that was added.
  void add_change(int64_t head, int64_t step, const SlotChange& change) {
    value_part_(head, step) += change.value_part;
    mass_part_(head, step) += change.mass_part;
  }

  int64_t steps() const { return sag_.columns(); }
  double sag(int64_t step) const;  ///< (1/Hq) sum over heads and merged slots
  double shift(int64_t step) const;
  double defect(int64_t step) const;      ///< mean over heads and merged slots; NaN without any
  std::vector<double> defects() const;    ///< all of them, head by head
  double value_part(int64_t step) const;  ///< means over heads and merged slots, as the defect
  double mass_part(int64_t step) const;
  const Table<double>& member_attention() const { return attention_; }  ///< [Hq][steps]
  const Table<double>& member_importance() const { return importance_; }

 private:
  double slot_mean(const Table<double>& sums, int64_t step) const;

  Table<double> sag_;
  Table<double> shift_;
  Table<double> defect_sum_;
  Table<double> slots_;
  Table<double> attention_;
  Table<double> importance_;
  Table<double> value_part_;  // empty unless wanted
  Table<double> mass_part_;
  /// In a cache line of its own: heads are added side by side.
  struct alignas(64) Defects {
    std::vector<float> of_head;
  };
  std::vector<Defects> defects_;
};

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
