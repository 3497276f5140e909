#pragma once
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/core/slot_change.hpp"

namespace kvsim {

/// What merging did to the attention at some steps (metrics.md 3). Different query heads may be
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
  /// What a slot that was added changes of the head's output.
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

}  // namespace kvsim
