#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "sim/policy/head_grouping.hpp"
#include "sim/policy/row_consumer.hpp"
#include "sim/stages/allocate/allocate.hpp"

namespace kvsim {

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
  const Indicator& indicator_;
  HeadGrouping heads_;
  std::unique_ptr<RowIndicator> rows_;
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
