#pragma once
#include "sim/core/decimal.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/policy/row_consumer.hpp"
#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/scored_layer.hpp"

namespace kvsim {

/// Rows of an indicator, which may be shared by several consumers: each block is prepared once for
/// all of them. What the rows can do is found out once.
class SharedRows {
 public:
  explicit SharedRows(std::unique_ptr<IndicatorRows> rows)
      : rows_(std::move(rows)), stored_(dynamic_cast<const StoredRows*>(rows_.get())),
        summed_(dynamic_cast<const SummedRows*>(rows_.get())),
        aggregated_(dynamic_cast<const AggregatedRows*>(rows_.get())) {}

  void start(const AttentionBlock& block, int64_t first_row);
  const IndicatorRows* operator->() const { return rows_.get(); }
  const StoredRows* stored() const { return stored_; }  ///< null where they are not; so below
  const SummedRows* summed() const { return summed_; }
  const AggregatedRows* aggregated() const { return aggregated_; }

 private:
  std::unique_ptr<IndicatorRows> rows_;
  const StoredRows* stored_;
  const SummedRows* summed_;
  const AggregatedRows* aggregated_;
  std::tuple<int, int64_t, int64_t> prepared_{-1, -1, -1};  ///< KV head, first row, rows
};

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
  RowUse use() const override;
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
  SharedRows rows_;
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
  RowUse use() const override;
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

/// The rows of one layer by all that they depend on.
class RowsOfLayer {
 public:
  explicit RowsOfLayer(LayerWork& work) : work_(work) {}
  /// Null for indicators without rows. `rows_outer`: of the pass that shows the blocks.
  std::shared_ptr<SharedRows> rows(const Settings& settings, const Segment& segment,
                                   bool rows_outer);
  /// Memory for whoever works on a block, until the next one does.
  std::shared_ptr<Buffer<double>> memory() { return memory_; }

 private:
  using Name = std::tuple<std::map<std::string, std::string>, int64_t, int64_t,
                          std::vector<int64_t>, int, std::vector<int64_t>, bool>;
  LayerWork& work_;
  std::shared_ptr<Buffer<double>> memory_ = std::make_shared<Buffer<double>>();
  std::map<Name, std::shared_ptr<SharedRows>> rows_;
};

/// Where the K best entries of the observing rows stand, early against late (ReST-KV Eq. 10).
class DriftTracker {
 public:
  /// `best`: the values of K to follow, one result each.
  DriftTracker(std::vector<int64_t> best, int64_t rows);
  /// Rows may come side by side, each once.
  void add(int64_t j, std::span<const double> row);
  PositionDrift drift(size_t variant) const;  ///< Delta; 0 if K = 0 or there is one row

 private:
  std::vector<int64_t> best_;
  std::vector<size_t> ascending_;  // variants by K
  Table<int64_t> counts_;          // [rows][variants] how many best a row has
  Table<int64_t> sums_;            // [rows][variants] sum of their positions
};

/// indicator -> {smooth, aggregate, group in the order of `order`} over one segment, for
/// indicators that have queries. Writes [owners][n] per variant.
class SegmentScorer : public RowConsumer {
 public:
  /// `results`: grouped scores, one table [owners][n] per variant of the plan.
  SegmentScorer(LayerWork& work, const ScorePlan& plan, const Segment& segment, RowsOfLayer& rows,
                std::vector<Table<double>>& results);

  AttentionPass wanted() const override;
  RowUse use() const override;
  void take_sums(const TakenSums& taken) override;
  void start(const AttentionBlock& block, int64_t first_row) override;
  int tasks(const AttentionBlock&) const override { return 0; }  // end() shares the work out
  void run(const AttentionBlock&, int64_t, int) override {}
  void end(const AttentionBlock& block, int64_t first_row) override;

 private:
  using Row = std::vector<double>;
  /// One row of scores in the making: a head, a group, or the layer.
  struct Unit {
    std::unique_ptr<Aggregation> aggregation;
    std::unique_ptr<DriftTracker> drift;
  };

  /// Are rows grouped, or smoothed, before they are aggregated?
  bool groups_before() const {
    return heads_.combines() && plan_.steps.before_aggregate(ScoringStep::group);
  }
  bool smooths_before() const {
    return plan_.steps.before_aggregate(ScoringStep::smooth) && !smooth_.changes_nothing();
  }
  /// Are rows grouped over all KV heads before they are aggregated?
  bool waits_for_layer() const { return groups_before() && heads_.whole_layer(); }
  /// Have the rows of the block all their heads?
  bool complete(const AttentionBlock& block) const {
    return !waits_for_layer() || heads_.complete(block.kv_head);
  }
  /// Rows of a KV head that are aggregated.
  int units() const { return groups_before() ? 1 : heads_.rows_per_query(); }
  bool rows_in_place() const;
  int64_t rows_at_once(const AttentionBlock& block) const;
  std::span<double> made(size_t unit, int64_t row) const;
  std::span<const double> made_row(const AttentionBlock& block, size_t unit, int64_t row) const;
  void open_units(int count);
  void make_row(const AttentionBlock& block, int64_t first_row, size_t unit, int64_t row);
  void make_head_row(const AttentionBlock& block, size_t head, int64_t row);
  void make_group_row(const AttentionBlock& block, int64_t row);
  void fold(const AttentionBlock& block, int64_t first_row);
  void follow_attention(const AttentionBlock& block, size_t head, int64_t row, int64_t j);
  int64_t visible(int64_t position) const;
  int64_t number(int64_t row) const;
  void close_kv_head(int kv_head);
  void close_variant(int kv_head, size_t variant, std::vector<Row> rows);
  void smooth_into(size_t variant, const Unit& unit, Row& row) const;
  void write(size_t variant, Range owners, std::span<const double> row);

  LayerWork& work_;
  const ScorePlan& plan_;
  const Settings& settings_;
  const Indicator& indicator_;
  const Aggregate& aggregate_;
  const Smooth& smooth_;
  HeadGrouping heads_;
  std::vector<Table<double>>& results_;
  std::shared_ptr<SharedRows> rows_;
  std::shared_ptr<Buffer<double>> made_;  // [unit][making_][candidates] as they are aggregated
  Range making_;                          // rows of the block at work
  std::string after_;                     // what comes after aggregation
  std::vector<Unit> units_;               // of the KV head at work, or of the layer
  std::vector<Row> layer_rows_;           // per variant, heads combined so far (group=layer-mean)
};

/// Runs the scoring stages of all plans over one layer. Plans that observe with the same queries
/// share one pass over the attention. One result for each plan and variant.
std::vector<std::vector<std::shared_ptr<ScoredLayer>>> score_layer(
    LayerWork& work, const SideFiles& files, uint64_t seed,
    const std::vector<const ScorePlan*>& plans);

}  // namespace kvsim
