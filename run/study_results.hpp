#pragma once
#include <map>
#include <vector>

#include "analysis/correlation.hpp"
#include "analysis/keep_rate.hpp"
#include "analysis/memory_model.hpp"
#include "analysis/merge_bound.hpp"
#include "analysis/prediction_error.hpp"
#include "analysis/stream_error.hpp"
#include "run/layer_measures.hpp"
#include "run/study.hpp"

namespace kvsim {

/// Fills the dataset of one study. Variables that are not declared for this run do not exist in it;
/// everything here asks for them by name.
class StudyResults {
 public:
  /// `records` are those that are shown.
  StudyResults(const TraceReader& reader, const StudyOptions& options,
               const std::vector<Record>& records, std::vector<int64_t> projected_steps);

  /// Everything about one cell in one layer that comes from the replay itself.
  void write_cell(ReplayCell cell, int64_t layer, const LayerWork& work,
                  const ReplayOutcome& outcome, const StepSeries& series, const FullSeries& full);
  /// Correlation of the importance over `count[t]` pairs, from step `first` on.
  void write_correlation(ReplayCell cell, int64_t layer, int64_t first,
                         const std::vector<Moments>& all,
                         const std::vector<Moments>& kept, const std::vector<double>& count);
  /// Regret against the series of the two oracles at the same budget; null: not asked for.
  void write_regret(ReplayCell cell, int64_t layer, const StepSeries& own,
                    const StepSeries* oracle_mean, const StepSeries* oracle_step);
  void write_minmax(ReplayCell cell, int64_t layer, double bound);
  /// KeepKV's bounds on what merged pairs change, [delay] samples each; `heads` read a slot.
  void write_bounds(ReplayCell cell, int64_t layer, int heads,
                    const std::vector<std::vector<BoundSample>>& samples);
  void write_prediction(int64_t layer, const std::vector<PredictionError>& errors);

  const std::vector<int64_t>& projected_steps() const { return projected_steps_; }
  const std::vector<SpanTokens>& spans() const { return spans_; }
  bool wants(const char* variable) const { return dataset_.has(variable); }
  Dataset& dataset() { return dataset_; }
  bool wants_merges() const;   ///< any measure of merging that is always made
  /// Is any variable wanted whose name begins like this?
  bool wants_some(std::string_view beginning) const;
  /// What a layer wrote, and the sums over all layers so far, to or from an archive.
  void exchange_layer(int64_t layer, Archive& archive);
  /// Adds what is known only at the end: memory over all layers, and the run's attributes.
  Dataset finish(const Backend& backend);

 private:
  void exchange_rows(Variable& variable, int64_t layer, Archive& archive);
  template <class Sums>
  void exchange_sums(std::map<std::pair<int, int>, Sums>& sums, Archive& archive);
  void write_series(const char* name, ReplayCell cell, int64_t layer,
                    const std::vector<double>& values, int64_t first = 0);
  void write_summaries(ReplayCell cell, int64_t layer, const StepSeries& series);
  void write_errors(ReplayCell cell, int64_t layer, const LayerWork& work,
                    const StepSeries& series, const FullSeries& full);
  void write_merges(ReplayCell cell, int64_t layer, const ReplayOutcome& outcome,
                    const StepSeries& series);
  void write_kept(ReplayCell cell, int64_t layer, const KeptSets& kept);
  void write_keep_rates(ReplayCell cell, int64_t layer, const KeptSets& kept);
  void write_classes(ReplayCell cell, int64_t layer, const Table<double>& spans);
  void write_heads(ReplayCell cell, int64_t layer, const StepSeries& series,
                   const FullSeries& full);
  void add_memory(ReplayCell cell, const LayerWork& work, const ReplayOutcome& outcome);
  void write_memory();
  void write_span_order();
  void write_stream();
  void set_value(const char* name, std::initializer_list<int64_t> index, double value);

  const TraceReader& reader_;
  const StudyOptions& options_;
  const std::vector<Record>& records_;
  std::vector<int64_t> projected_steps_;
  std::vector<SpanTokens> spans_;
  std::map<std::pair<int, int>, MemoryModel> memory_;   ///< by record and budget
  std::map<std::pair<int, int>, StreamError> stream_;   ///< likewise; empty without residual norms
  std::vector<double> last_norm_;   ///< residual stream [T] entering the last layer so far
  Dataset dataset_;
};

/// Dimensions, coordinates and undefined variables of a study.
Dataset empty_results(const TraceReader& reader, const StudyOptions& options,
                      const std::vector<Record>& records, const std::vector<SpanTokens>& spans);

/// Root attributes: what ran, on what, with which parameters.
void describe_run(Dataset& dataset, const TraceReader& reader, const StudyOptions& options,
                  const std::vector<Record>& records, const Backend& backend, int64_t wo_steps);

}  // namespace kvsim
