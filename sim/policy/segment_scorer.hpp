#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/core/position_drift.hpp"
#include "sim/policy/head_grouping.hpp"
#include "sim/policy/row_consumer.hpp"
#include "sim/policy/score_plan.hpp"
#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/smooth/smooth.hpp"

namespace kvsim {

/// Rows of an indicator that several records read: each block is prepared once for all of them.
class SharedRows {
 public:
  explicit SharedRows(std::unique_ptr<IndicatorRows> rows) : rows_(std::move(rows)) {}

  void start(const AttentionBlock& block, int64_t first_row);
  const IndicatorRows* operator->() const { return rows_.get(); }

 private:
  std::unique_ptr<IndicatorRows> rows_;
  std::tuple<int, int64_t, int64_t> prepared_{-1, -1, -1};  ///< KV head, first row, rows
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
  std::optional<AttentionSumRequest> wanted_sums() const override;
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
  bool rows_in_place(const AttentionBlock& block) const;
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
  std::vector<ScoringStep> after_;        // what comes after aggregation
  std::vector<Unit> units_;               // of the KV head at work, or of the layer
  std::vector<Row> layer_rows_;           // per variant, heads combined so far (group=layer-mean)
};

}  // namespace kvsim
