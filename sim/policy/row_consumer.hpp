#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/policy/head_grouping.hpp"
#include "sim/stages/allocate/allocate.hpp"
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

/// Mean attention of each owner over J, and the layer's attention on the last candidates and on
/// the window: what stage1=mass asks for (policies.md 6).
class MassConsumer : public RowConsumer {
 public:
  MassConsumer(LayerWork& work, const Segment& segment, bool looks_ahead, bool per_query_head,
               ScoredLayer& result);
  void start(const AttentionBlock&, int64_t) override {}
  void run(const AttentionBlock& block, int64_t first_row, int task) override;

 private:
  LayerWork& work_;
  bool per_query_head_;
  ScoredLayer& result_;
};

/// Standard deviation of the grouped row over the queries that see each entry (RoCo, std_keep).
class DeviationConsumer : public RowConsumer {
 public:
  DeviationConsumer(LayerWork& work, const Settings& settings, const Segment& segment,
                    Table<double>& deviation);
  AttentionPass wanted() const override;
  std::optional<AttentionSumRequest> wanted_sums() const override;
  void take_sums(const TakenSums& taken) override;
  void start(const AttentionBlock& block, int64_t first_row) override;
  int tasks(const AttentionBlock&) const override;
  void run(const AttentionBlock& block, int64_t first_row, int task) override;
  void end(const AttentionBlock& block, int64_t first_row) override;

 private:
  void add(int unit, size_t first, std::span<const double> part);
  void make_deviations();

  LayerWork& work_;
  const RowIndicator& indicator_;
  HeadGrouping heads_;
  std::unique_ptr<IndicatorRows> rows_;
  Table<double>& deviation_;
  Table<double> combined_;                          // [block rows][candidates], heads so far
  std::vector<std::vector<double>> sum_, squares_;  // per unit of the KV head at work
  std::vector<double> seen_;                        // [candidates] queries that see the entry
};

/// Hands rows, or their sums, to what an allocation watches.
class StatisticConsumer : public RowConsumer {
 public:
  StatisticConsumer(LayerWork& work, const Segment& segment, bool looks_ahead,
                    std::unique_ptr<RowStatistic> statistic)
      : RowConsumer(segment, looks_ahead), work_(work), statistic_(std::move(statistic)) {}
  std::optional<AttentionSumRequest> wanted_sums() const override;
  void take_sums(const TakenSums& taken) override;
  void start(const AttentionBlock&, int64_t) override {}
  int tasks(const AttentionBlock&) const override { return 0; }
  void run(const AttentionBlock&, int64_t, int) override {}
  void end(const AttentionBlock& block, int64_t first_row) override;
  std::vector<double> finish() { return statistic_->finish(); }

 private:
  void sum_up(const AttentionBlock& block, int64_t first_row);

  LayerWork& work_;
  std::unique_ptr<RowStatistic> statistic_;
  Table<double> sums_;  // [heads of the group][candidates], where rows of a probe are shown
};

}  // namespace kvsim
