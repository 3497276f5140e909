#pragma once
#include <memory>
#include <vector>

#include "analysis/measure.hpp"

namespace kvsim {

/// Records that are replayed beside the run's own for what it measures.
std::vector<Record> records_beside(const RunShape& run);
/// Throws bad data when the trace does not hold the queries that a measure of the run reads.
void check_measures(const RunShape& run, const SideFiles& files);

/// The results of one study, and the measures that fill them: each is made if some variable of it
/// is written.
class StudyMeasures {
 public:
  /// All that is referred to must outlive this.
  StudyMeasures(const RunShape& run, const SideFiles& files, std::vector<int64_t> projected_steps);

  const MeasureRun& run() const { return run_; }
  /// Work of a layer's replay for the measures.
  PrefillOptions replay_options() const;
  bool sees_epochs() const { return needs_.epochs; }
  /// One layer: its measures are written when Layer::finish() returns.
  class Layer;

  /// Adds what is known only at the end, and hands the results over.
  Dataset finish();

 private:
  Dataset dataset_;
  MeasureRun run_;
  std::vector<std::unique_ptr<Measure>> measures_;
  MeasureNeeds needs_;  ///< of all
};

/// The measures at work on one layer.
class StudyMeasures::Layer {
 public:
  Layer(StudyMeasures& study, LayerWork& work, int64_t index, const LayerReplay& replay,
        const std::vector<Record>& records);

  void see(const StepBlock& block);
  void see_epoch(LayerWork& prompt, const PrefillReplay& replay, size_t record, int64_t first_step);
  void finish();
  double projection_seconds() const { return norms_.seconds(); }

 private:
  void read_rows();

  StudyMeasures& study_;
  OutputNorms norms_;
  MeasuredLayer layer_;
  MeasureResults results_;
};

}  // namespace kvsim
