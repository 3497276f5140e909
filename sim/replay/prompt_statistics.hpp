#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/policy/head_grouping.hpp"
#include "sim/policy/row_consumer.hpp"
#include "sim/stages/aggregate/aggregate.hpp"

namespace kvsim {

/// The statistics from which decoding starts: full-cache rows of J over all prompt entries, grouped
/// before they are aggregated (policies.md 12).
class PromptStatistics : public RowConsumer {
 public:
  PromptStatistics(LayerWork& work, const Settings& settings, const Segment& segment);

  /// One per owner, over slots 0..n-1; taken once, after the pass.
  std::vector<std::unique_ptr<SlotStatistic>> take_scores() { return std::move(scores_); }
  std::vector<std::unique_ptr<SlotStatistic>> take_deviations() { return std::move(deviations_); }

  AttentionPass wanted() const override;
  std::optional<AttentionSumRequest> wanted_sums() const override;
  void take_sums(const TakenSums& taken) override;
  void start(const AttentionBlock& block, int64_t first_row) override;
  void run(const AttentionBlock& block, int64_t first_row, int task) override;

 private:
  void add(Range owners, std::span<const double> row, int64_t visible);

  LayerWork& work_;
  HeadGrouping heads_;
  std::unique_ptr<IndicatorRows> rows_;
  std::vector<std::unique_ptr<SlotStatistic>> scores_;
  std::vector<std::unique_ptr<SlotStatistic>> deviations_;  ///< empty unless std_keep > 0
  Table<double> grouped_;                                   ///< [block rows][n]
};

/// J of a record at budget B, with every prompt entry as a candidate.
Segment decode_segment(const Settings& settings, int64_t budget, const TraceInfo& info);

/// [Hq][N] norm of v_i W^h of prompt and later entries; of the prompt's the layer's own are used.
Table<float> norms_of_all(LayerWork& work, Norm norm);

}  // namespace kvsim
