#pragma once
#include "sim/policy/prepared_record.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/scored_layer.hpp"

namespace kvsim {

/// What a consumer makes of its rows, as far as it decides whether rows or sums are made for it:
/// rows of attention are shown one by one, or the backend adds them up and shows none, which takes
/// a fraction of the time. row_consumer.cpp decides, for all consumers.
struct RowUse {
  const SummedRows* terms =
      nullptr;  ///< its rows as terms of the backend's sums; null: they are not
  std::optional<std::vector<double>> weights = {};  ///< [M] of their sum; none: it is no such sum
  const HeadGrouping* grouping = nullptr;  ///< of heads, before rows are added up; null: none
  bool groups_layer = false;               ///< it adds up what is grouped over the whole layer, too
  bool squares = false;   ///< it takes sums of the groups' rows, and of their squares
  bool each_row = false;  ///< it looks at single rows: they are smoothed, or compared
};

/// The tables that the backend made of a RowUse: the sum; with `squares` that of groups, and that
/// of their squares.
using TakenSums = std::vector<const Table<double>*>;

/// Something that reads attention rows block by block: a record's scores, or a statistic. Blocks
/// of a KV head come in order of rows.
class RowConsumer {
 public:
  /// `looks_ahead`: the segment's queries may be later steps (oracles).
  explicit RowConsumer(const Segment& segment, bool looks_ahead = false)
      : segment_(segment), looks_ahead_(looks_ahead) {}
  virtual ~RowConsumer() = default;
  RowConsumer(const RowConsumer&) = delete;
  RowConsumer& operator=(const RowConsumer&) = delete;

  const Segment& segment() const { return segment_; }
  bool looks_ahead() const { return looks_ahead_; }
  virtual AttentionPass wanted() const { return observed(); }
  /// All queries of the segment.
  AttentionPass observed() const {
    return {.positions = segment_.positions,
            .look_ahead = looks_ahead_,
            .probe = segment_.probe,
            .probe_tokens = segment_.probe_tokens};
  }

  /// Where sums will do, no row is shown, and take_sums is called once. They may have more columns
  /// than the candidates.
  virtual RowUse use() const { return {}; }
  virtual void take_sums(const TakenSums&) {}

  virtual void start(const AttentionBlock& block, int64_t first_row) = 0;
  virtual int tasks(const AttentionBlock&) const { return 1; }
  /// Tasks of one block run in parallel; each must write to its own memory only.
  virtual void run(const AttentionBlock& block, int64_t first_row, int task) = 0;
  virtual void end(const AttentionBlock&, int64_t /*first_row*/) {}

 private:
  Segment segment_;
  bool looks_ahead_;
};

/// Feeds all consumers, with one pass for each distinct set of observing queries, and as
/// few as memory allows for sums.
void run_consumers(LayerWork& work, const std::vector<RowConsumer*>& consumers);

}  // namespace kvsim
