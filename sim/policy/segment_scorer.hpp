#pragma once
#include <memory>
#include <string>
#include <vector>

#include "sim/policy/drift_tracker.hpp"
#include "sim/policy/row_consumer.hpp"
#include "sim/policy/scoring.hpp"
#include "sim/policy/shared_rows.hpp"
#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/group/group.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/smooth/smooth.hpp"

namespace kvsim {

/// indicator -> {smooth, aggregate, group in the order of `order`} over one segment, for
/// indicators that have queries. Writes [owners][n] per variant.
class SegmentScorer : public RowConsumer {
 public:
  /// `results`: grouped scores, one table [owners][n] per variant of the job.
  SegmentScorer(LayerWork& work, const ScoreJob& job, const Segment& segment, RowsOfLayer& rows,
                std::vector<Table<double>>& results);

  AttentionPass wanted() const override;
  std::optional<AttentionSumRequest> wanted_sums() const override;
  void take_sums(const TakenSums& taken) override;
  void start(const AttentionBlock& block, int64_t first_row) override;
  int tasks(const AttentionBlock& block) const override;
  void run(const AttentionBlock& block, int64_t first_row, int task) override;
  void end(const AttentionBlock& block, int64_t first_row) override;

 private:
  using Row = std::vector<double>;
  /// One row of scores in the making: a head, a group, or the layer.
  struct Unit {
    std::unique_ptr<Aggregation> aggregation;
    std::unique_ptr<DriftTracker> drift;
  };

  bool groups_before() const { return before_.find('g') != std::string::npos; }
  bool smooths_before() const {
    return before_.find('s') != std::string::npos && !smooth_.changes_nothing();
  }
  bool whole_layer() const { return has_group_ && group_.span() == GroupSpan::layer; }
  bool last_kv_head(int kv_head) const { return kv_head + 1 == work_.kv_heads(); }
  /// Have the rows of the block all their heads?
  bool complete(const AttentionBlock& block) const {
    return !(whole_layer() && groups_before()) || last_kv_head(block.kv_head);
  }
  bool one_unit() const;
  bool rows_in_place(const AttentionBlock& block) const;
  std::span<double> made(const AttentionBlock& block, size_t unit, int64_t row) const;
  std::span<const double> made_row(const AttentionBlock& block, size_t unit, int64_t row) const;
  void open_units(int count);
  void make_head_row(const AttentionBlock& block, size_t head, int64_t row);
  void make_group_row(const AttentionBlock& block, int64_t row);
  void fold(const AttentionBlock& block, int64_t first_row);
  void follow_attention(const AttentionBlock& block, size_t head, int64_t row, int64_t j);
  int64_t visible(int64_t position) const;
  void close_kv_head(int kv_head);
  void close_variant(int kv_head, size_t variant, const std::vector<Row>& rows);
  void smooth_into(size_t variant, const Unit& unit, Row& row) const;
  void write(size_t variant, int64_t owner, std::span<const double> row);

  LayerWork& work_;
  const ScoreJob& job_;
  const Settings& settings_;
  const Indicator& indicator_;
  const Aggregate& aggregate_;
  const Smooth& smooth_;
  const Group& group_;
  std::vector<Table<double>>& results_;
  std::shared_ptr<SharedRows> rows_;
  std::shared_ptr<Buffer<double>> made_;  // [unit][block rows][candidates] as they are aggregated
  std::string before_, after_;            // letters of `order` on either side of `a`
  bool has_group_;                        // heads are combined at all
  bool per_query_head_;
  std::vector<Unit> units_;      // of the KV head at work, or of the layer
  std::vector<Row> layer_rows_;  // per variant, heads combined so far (group=layer-mean)
};

}  // namespace kvsim
