#pragma once
#include <span>

#include "sim/stages/group/group.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {

/// How rows of query heads become rows of owners, whoever has the rows (policies.md 5.6). A KV
/// head's *units* are its rows after grouping: one, or one per query head.
class HeadGrouping {
 public:
  HeadGrouping(const LayerWork& work, const Settings& settings);

  /// Do heads become one row? Else each is its own unit, or the indicator has grouped them.
  bool combines() const { return combines_; }
  /// Is there one row for all KV heads? Their blocks then come row by row.
  bool whole_layer() const { return whole_layer_; }
  /// Is the group of summed rows the sum of grouped rows?
  bool linear() const { return !combines_ || group_.linear(); }
  /// Rows that the indicator has of a KV head for each query.
  int rows_per_query() const { return of_groups_ ? 1 : heads_; }
  int units() const { return combines_ || of_groups_ ? 1 : heads_; }
  /// Has the row all its heads, once those of this KV head are in it?
  bool complete(int kv_head) const { return !whole_layer_ || kv_head + 1 == kv_heads_; }
  /// Is this the first KV head of a row?
  bool begins(int kv_head) const { return !whole_layer_ || kv_head == 0; }

  /// Adds the row of head `x` of a KV head's to the group's; heads come in order.
  void add(int kv_head, int x, std::span<const double> row, std::span<double> group) const {
    group_.add(whole_layer_ ? kv_head * heads_ + x : x, whole_layer_ ? kv_heads_ * heads_ : heads_,
               row, group);
  }
  /// Owners of unit `unit` of a KV head.
  Range owners(int kv_head, int unit) const;

 private:
  const Group& group_;
  bool of_groups_;  // the indicator has one row per KV head
  bool combines_;
  bool whole_layer_;
  bool of_query_heads_;  // owners are query heads
  int heads_;            // of a KV head
  int kv_heads_;
};

}  // namespace kvsim
