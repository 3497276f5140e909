#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/stages/scored_layer.hpp"

namespace kvsim {

/// The tables of a consumer's AttentionSumRequest, in its order.
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

  /// Where sums over the rows will do: which; no row is then shown, and take_sums is called once
  /// with them. They may have more columns than were asked for.
  virtual std::optional<AttentionSumRequest> wanted_sums() const { return std::nullopt; }
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
