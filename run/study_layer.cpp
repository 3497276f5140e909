#include <algorithm>
#include <map>

#include "analysis/regret.hpp"
#include "run/study.hpp"
#include "run/study_results.hpp"

namespace kvsim {
namespace {

/// Replay plan of one set: every entry, for every KV head.
ReplayPlan everything(const LayerWork& work) {
  KeptChain chain;
  for (int64_t i = 0; i < work.entries(); ++i) chain.order.push_back(static_cast<uint32_t>(i));
  chain.end = {work.entries()};
  ReplayPlan plan;
  plan.masses_only = true;
  plan.owners.assign(static_cast<size_t>(work.kv_heads()), chain);
  return plan;
}

/// Moments of importance for each outcome of a layer's replay, in the scope of the run.
class LayerMoments {
 public:
  LayerMoments(LayerWork& work, const PrefillReplay& replay, Scope scope)
      : work_(work), replay_(replay), scope_(scope) {
    std::vector<ReplayPlan> plans = replay.plans().plans;
    plans.push_back(everything(work));
    const Table<float>& importance = replay.importance();
    sets_ = set_moments(work, plans, importance.data(), importance.columns());
    if (scope == Scope::all) later_ = later_moments(work, importance.data(), importance.columns());
  }

  std::vector<Moments> all(const ReplayOutcome& outcome) const {
    return with_later(of_handle(outcome.total_handle));
  }
  std::vector<Moments> kept(const ReplayOutcome& outcome, const StepSeries& series) const {
    if (series.kept_moments.empty()) return with_later(of_handle(outcome.share_handle));
    std::vector<Moments> own = series.kept_moments;
    for (size_t t = 0; t < later_.size(); ++t)
      own[t].squares += later_[t].squares;   // the sum has them already
    return own;
  }
  /// Pairs of query head and entry that the scope holds at each step.
  std::vector<double> count(const ReplayOutcome& outcome) const {
    const TraceInfo& info = work_.info();
    std::vector<double> pairs(static_cast<size_t>(info.steps()),
                              static_cast<double>(work_.query_heads() * work_.entries()));
    if (scope_ == Scope::evictable && outcome.total_handle >= 0) {
      double guarded = 0;
      for (const auto& owner : outcome.kept->guarded) guarded += static_cast<double>(owner.size());
      const int heads = outcome.kept->per_query_head ? 1 : work_.group_size();
      for (double& pair : pairs) pair -= guarded * heads;
    }
    if (scope_ == Scope::all) {
      for (size_t t = 0; t < pairs.size(); ++t) {
        const int64_t position =
            info.query_position[static_cast<size_t>(info.first_step()) + t];
        pairs[t] = static_cast<double>(work_.query_heads()) * static_cast<double>(position + 1);
      }
    }
    return pairs;
  }

 private:
  const std::vector<Moments>& of_handle(int handle) const {
    const int set = handle < 0 ? PlanBuilder::Plans::kEverything
                               : replay_.plans().set[static_cast<size_t>(handle)];
    return set < 0 ? sets_.back() : sets_[static_cast<size_t>(set)];
  }
  std::vector<Moments> with_later(std::vector<Moments> moments) const {
    for (size_t t = 0; t < later_.size(); ++t) {
      moments[t].sum += later_[t].sum;
      moments[t].squares += later_[t].squares;
    }
    return moments;
  }

  LayerWork& work_;
  const PrefillReplay& replay_;
  Scope scope_;
  std::vector<std::vector<Moments>> sets_;   ///< [set][T]; the last is the whole prompt
  std::vector<Moments> later_;               ///< [T], scope all only
};

}  // namespace

void Study::write_layer(LayerWork& work, int64_t layer, const LayerReplay& replay,
                        const LayerMeasures& measures) {
  std::map<std::pair<int, int>, const StepSeries*> series_of;
  for (size_t o = 0; o < replay.count(); ++o) {
    for (const ReplayCell cell : replay.outcome(o).cells) {
      series_of[{cell.record, cell.budget}] = &measures.outcomes()[o];
    }
  }
  const auto oracle = [&](int record, int budget) {
    return record < 0 ? nullptr : series_of.at({record, budget});
  };
  for (size_t o = 0; o < replay.count(); ++o) {
    const ReplayOutcome& outcome = replay.outcome(o);
    const StepSeries& series = measures.outcomes()[o];
    for (const ReplayCell cell : outcome.cells) {
      if (cell.record >= static_cast<int>(shown_)) continue;
      results_->write_cell(cell, layer, work, outcome, series, measures.full());
      results_->write_regret(cell, layer, series, oracle(oracle_mean_, cell.budget),
                             oracle(oracle_step_, cell.budget));
    }
  }
  if (results_->wants("importance_pearson") || results_->wants("importance_cosine")) {
    write_correlations(work, layer, replay, measures);
  }
  if (results_->wants("minmax_bound")) write_minmax(work, layer, replay.prefill(), measures.full());
}

void Study::write_correlations(LayerWork& work, int64_t layer, const LayerReplay& replay,
                               const LayerMeasures& measures) {
  const LayerMoments moments(work, replay.prefill(), options_.scope);
  for (size_t o = 0; o < replay.count(); ++o) {
    const ReplayOutcome& outcome = replay.outcome(o);
    const StepSeries& series = measures.outcomes()[o];
    const bool decoded = !series.all_moments.empty();
    if (!outcome.shares_defined || (!decoded && o >= replay.prefill().outcomes().size())) continue;
    for (const ReplayCell cell : outcome.cells) {
      if (cell.record >= static_cast<int>(shown_)) continue;
      if (decoded)
        results_->write_correlation(cell, layer, 0, series.all_moments, series.kept_moments,
                                    series.entries);
      else
        results_->write_correlation(cell, layer, 0, moments.all(outcome),
                                    moments.kept(outcome, series), moments.count(outcome));
    }
  }
}

/// The same for one stretch of a periodic record, whose prompt is longer.
void Study::write_epoch_correlations(LayerWork& work, int64_t layer, const PrefillReplay& replay,
                                     size_t record, int64_t first_step) {
  if (record >= shown_) return;
  const LayerMoments moments(work, replay, options_.scope);
  for (const ReplayOutcome& outcome : replay.outcomes()) {
    if (!outcome.shares_defined) continue;
    for (const ReplayCell cell : outcome.cells)
      results_->write_correlation({static_cast<int>(record), cell.budget}, layer, first_step,
                                  moments.all(outcome), moments.kept(outcome, {}),
                                  moments.count(outcome));
  }
}

/// The bound belongs to a budget and to who owns a set (KV heads or query heads), not to a policy.
/// It is about static sets of the prompt: what periodic or decoding records keep has none.
void Study::write_minmax(LayerWork& work, int64_t layer, const PrefillReplay& replay,
                         const FullSeries& full) {
  const Table<float>& importance = replay.importance();
  for (const bool per_query_head : {false, true}) {
    std::vector<ReplayCell> cells;
    for (const ReplayOutcome& outcome : replay.outcomes()) {
      if (outcome.kept->per_query_head != per_query_head || !outcome.shares_defined) continue;
      std::ranges::copy_if(outcome.cells, std::back_inserter(cells), [&](ReplayCell cell) {
        return cell.record < static_cast<int>(shown_);
      });
    }
    if (cells.empty()) continue;
    const ImportanceGains gains =
        importance_gains(work, importance.data(), importance.columns(), full.importance,
                         full.later_share, per_query_head);
    for (size_t b = 0; b < options_.budgets.size(); ++b) {
      const double bound = minmax_bound(gains, options_.budgets[b].entries(work.entries()));
      for (const ReplayCell cell : cells) {
        if (cell.budget == static_cast<int>(b)) results_->write_minmax(cell, layer, bound);
      }
    }
  }
}

}  // namespace kvsim
