// The part of the results that is about merging and asked for by name (metrics.md 3).
#include <algorithm>

#include "run/layer_replay.hpp"
#include "run/study_results.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

/// Bounds that are about the merge of a record, where its slots are read by that many heads.
std::vector<std::string> bounds_of(const Settings& settings, int heads) {
  return Kinds<Merge>::find(settings.text("merge")).bounds(heads);
}

}  // namespace

void Study::write_bounds(LayerWork& work, int64_t layer, const LayerReplay& replay) {
  for (size_t o = 0; o < replay.count(); ++o) {
    const ReplayOutcome& outcome = replay.outcome(o);
    if (outcome.pairs.empty()) continue;
    if (bounds_of(*outcome.settings, outcome.pairs.front().heads).empty()) continue;
    const auto samples = bound_samples(work, outcome.pairs);
    for (const ReplayCell cell : outcome.cells)
      if (cell.record < static_cast<int>(shown_))
        results_->write_bounds(cell, layer, outcome.pairs.front().heads, samples);
  }
}

void StudyResults::write_bounds(ReplayCell cell, int64_t layer, int heads,
                                const std::vector<std::vector<BoundSample>>& samples) {
  const auto [p, b] = cell;
  const auto names = bounds_of(records_[static_cast<size_t>(p)].settings, heads);
  for (size_t k = 0; k < merge_bounds().size(); ++k) {
    if (std::ranges::find(names, merge_bounds()[k].name) == names.end()) continue;
    for (size_t d = 0; d < samples.size(); ++d) {
      const BoundSummary summary = summarize(merge_bounds()[k], samples[d]);
      const auto set = [&](const char* name, double value) {
        set_value(name, {p, b, layer, static_cast<int64_t>(k), static_cast<int64_t>(d)}, value);
      };
      set("bound_pairs", static_cast<double>(summary.pairs));
      set("bound_share_applicable", summary.applicable);
      set("bound_share_violated", summary.violated);
      set("bound_median_ratio", summary.ratio);
      set("bound_median", summary.bound);
      set("bound_perturbation", summary.perturbation);
    }
  }
}

void StudyResults::write_prediction(int64_t layer, const std::vector<PredictionError>& errors) {
  const size_t predictors = score_predictors().size();
  for (size_t x = 0; x < errors.size(); ++x) {
    const auto score = static_cast<int64_t>(x / predictors);
    const auto predictor = static_cast<int64_t>(x % predictors);
    set_value("prediction_error_median", {layer, score, predictor}, errors[x].median);
    set_value("prediction_error_trimmed_mean", {layer, score, predictor}, errors[x].trimmed_mean);
    set_value("prediction_error_weighted_mean", {layer, score, predictor},
              errors[x].weighted_mean);
  }
}

}  // namespace kvsim
