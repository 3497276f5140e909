#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {

double retained_share(double kept, double total) {
  if (total == 0) return 1;
  // The two sums add the same float32 terms in different orders, so that the ratio of a set that
  // holds everything may come out a rounding error beyond its range.
  return std::clamp(kept / total, 0.0, 1.0);
}

void retained_pooled(const Table<double>& kept, const Table<double>& total, std::span<double> out) {
  std::vector<double> kept_sum(out.size(), 0.0), total_sum(out.size(), 0.0);
  for (int64_t h = 0; h < kept.rows(); ++h) {
    const auto kept_row = kept.row(h), total_row = total.row(h);
    for (size_t s = 0; s < out.size(); ++s) {
      kept_sum[s] += kept_row[s];
      total_sum[s] += total_row[s];
    }
  }
  for (size_t s = 0; s < out.size(); ++s) out[s] = retained_share(kept_sum[s], total_sum[s]);
}

void retained_of_head(const Table<double>& kept, const Table<double>& total, int head,
                      std::span<double> out) {
  for (int64_t s = 0; s < std::ssize(out); ++s)
    out[s] = retained_share(kept(head, s), total(head, s));
}

double outlier_count(std::span<const double> retained_importance, double threshold) {
  const auto undefined = [](double value) { return std::isnan(value); };
  if (std::all_of(retained_importance.begin(), retained_importance.end(), undefined))
    return kUndefined;
  return static_cast<double>(std::count_if(retained_importance.begin(), retained_importance.end(),
                                           [&](double value) { return value < threshold; }));
}

double importance_pearson(const Moments& all, const Moments& kept, double count) {
  // With y = x on kept entries and 0 elsewhere, sum(xy) = sum(y^2).
  const double xx = count * all.squares - all.sum * all.sum;
  const double yy = count * kept.squares - kept.sum * kept.sum;
  const double xy = count * kept.squares - all.sum * kept.sum;
  const bool equal = all.sum == kept.sum && all.squares == kept.squares;
  if (equal) return 1;
  if (xx <= 0 || yy <= 0) return 0;
  return std::clamp(xy / std::sqrt(xx * yy), -1.0, 1.0);
}

double importance_cosine(const Moments& all, const Moments& kept) {
  if (all.squares == kept.squares) return 1;
  return all.squares == 0 ? 0 : std::min(1.0, std::sqrt(kept.squares / all.squares));
}

}  // namespace kvsim

namespace kvsim::measures::retained {
namespace {

struct Retained : Measure {
  using Measure::Measure;

  void start(const MeasuredLayer& layer) override {
    importance_ = attention_ = series(static_cast<int64_t>(layer.replay.count()));
    if (!run().options.per_head) return;
    importance_heads_.assign(layer.replay.count(), series(run().info.num_query_heads));
    attention_heads_ = importance_heads_;
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums == nullptr) return;
    retained_pooled(view.sums->kept.importance, view.sums->total.importance,
                    importance_.row(view.outcome).subspan(block.first_step, block.steps));
    retained_pooled(view.sums->kept.attention, view.sums->total.attention,
                    attention_.row(view.outcome).subspan(block.first_step, block.steps));
    for (int h = 0; run().options.per_head && h < run().info.num_query_heads; ++h) {
      retained_of_head(
          view.sums->kept.importance, view.sums->total.importance, h,
          importance_heads_[view.outcome].row(h).subspan(block.first_step, block.steps));
      retained_of_head(
          view.sums->kept.attention, view.sums->total.attention, h,
          attention_heads_[view.outcome].row(h).subspan(block.first_step, block.steps));
    }
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index};
      results.copy("retained_importance", at, importance_.row(o));
      results.copy("retained_attention", at, attention_.row(o));
      results.set("retained_importance_mean", at, mean(importance_.row(o)));
      results.set("retained_importance_min", at, minimum(importance_.row(o)));
      results.set("retained_importance_p01", at, percentile(importance_.row(o), 1));
      results.set("retained_attention_mean", at, mean(attention_.row(o)));
      results.set("retained_attention_min", at, minimum(attention_.row(o)));
      results.set("retained_attention_p01", at, percentile(attention_.row(o), 1));
      results.set("outlier_count", at, outlier_count(importance_.row(o), run().options.outlier));
      for (int h = 0; run().options.per_head && h < run().info.num_query_heads; ++h) {
        const std::initializer_list<int64_t> of_head = {cell.record, cell.budget, layer.index, h};
        results.copy("retained_importance_head", of_head, importance_heads_[o].row(h));
        results.copy("retained_attention_head", of_head, attention_heads_[o].row(h));
      }
    });
  }

 private:
  Table<double> importance_, attention_;
  std::vector<Table<double>> importance_heads_, attention_heads_;  ///< [outcome] each [Hq][T]
};
const RegisterMeasure<Retained> register_retained(
    {.name = "retained", .place = 100, .when = &kAlways},
    {{"retained_importance", kOverSteps, "1", "retained importance",
      "share of the importance I = A * ‖v W‖, summed over query heads, that falls on kept entries"},
     {"retained_attention", kOverSteps, "1", "retained attention", "the same with I = A"},
     {"retained_importance_mean", kOverLayers, "1", "mean retained importance", "mean over steps"},
     {"retained_importance_min", kOverLayers, "1", "worst retained importance",
      "minimum over steps"},
     {"retained_importance_p01", kOverLayers, "1", "retained importance, percentile 1",
      "percentile 1 over steps"},
     {"retained_attention_mean", kOverLayers, "1", "mean retained attention", "mean over steps"},
     {"retained_attention_min", kOverLayers, "1", "worst retained attention", "minimum over steps"},
     {"retained_attention_p01", kOverLayers, "1", "retained attention, percentile 1",
      "percentile 1 over steps"},
     {"outlier_count", kOverLayers, "count", "steps with low retained importance",
      "number of steps whose retained importance is below --outlier (0.5)"},
     {"retained_importance_head", kOverHeadSteps, "1", "retained importance of a query head",
      "the ratio of one head", Needs{&kPerHead}},
     {"retained_attention_head", kOverHeadSteps, "1", "retained attention of a query head",
      "the ratio of one head", Needs{&kPerHead}}});

/// Replay plan of one set: every entry, for every KV head.
ReplayPlan everything(const LayerWork& work) {
  ReplayPlan plan;
  plan.owners.assign(work.kv_heads(), {ascending<uint32_t>(work.entries()), {work.entries()}});
  return plan;
}

/// Moments of the importance, [T] each; without `all`, only what was kept is known.
struct SeenMoments {
  std::vector<Moments> kept, all;
  std::vector<double> pairs;  ///< of query head and entry in the scope
};

/// Moments of importance for each outcome of a layer's prefill replay, in the scope of the run.
/// Streams rows of attention from the backend.
class LayerMoments {
 public:
  LayerMoments(LayerWork& work, const PrefillReplay& replay, Scope scope)
      : work_(work), replay_(replay), scope_(scope) {
    std::vector<ReplayPlan> plans = replay.plans().plans;
    plans.push_back(everything(work));
    const std::vector<Moments> none(work.info().steps());
    for (const ReplayPlan& plan : plans) sets_.resize(sets_.size() + plan.boundaries(), none);
    if (scope == Scope::all) later_ = none;
    const AttentionPass pass{
        .positions = work.info().later_queries(),
        .look_ahead = true,
        .columns = scope == Scope::all ? work.info().total_len : work.entries()};
    for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t first_step) {
      // One step per iteration: every sum belongs to one thread.
      parallel_for(block.rows, [&](int64_t r) {
        for (int x = 0; x < block.heads; ++x)
          add_row(block, x, r, plans, static_cast<size_t>(first_step + r));
      });
    });
  }

  /// `kept`: when it was seen in the replay, since no set of a plan stands for it.
  SeenMoments of(const ReplayOutcome& outcome, std::vector<Moments> seen = {}) const {
    SeenMoments moments;
    moments.all = with_later(of_handle(outcome.total_handle));
    if (seen.empty()) {
      moments.kept = with_later(of_handle(outcome.share_handle));
    } else {
      moments.kept = std::move(seen);
      for (size_t t = 0; t < later_.size(); ++t)
        moments.kept[t].squares += later_[t].squares;  // the sum has them already
    }
    moments.pairs = pairs(outcome);
    return moments;
  }

 private:
  /// Walks the chain of every plan over one row of a head.
  void add_row(const AttentionBlock& block, int x, int64_t r, const std::vector<ReplayPlan>& plans,
               size_t step) {
    const int head = block.kv_head * block.heads + x;
    const auto weight = replay_.importance().row(head);
    const float* const attention = block.attention_row(x, r);
    const auto importance = [&](int64_t i) {
      return static_cast<double>(attention[i] * weight[i]);
    };
    size_t set = 0;
    for (const ReplayPlan& plan : plans) {
      const KeptChain& chain = plan.owners[plan.per_query_head ? head : block.kv_head];
      Moments moments;
      int64_t at = 0;
      for (const int64_t end : chain.end) {
        for (; at < end; ++at) moments.add(importance(chain.order[at]));
        sets_[set++][step] += moments;
      }
    }
    for (int64_t i = work_.entries(); !later_.empty() && i < block.columns; ++i)
      later_[step].add(importance(i));
  }
  std::vector<double> pairs(const ReplayOutcome& outcome) const {
    const TraceInfo& info = work_.info();
    std::vector<double> counts(info.steps(),
                               static_cast<double>(work_.query_heads() * work_.entries()));
    if (scope_ == Scope::evictable && outcome.total_handle >= 0) {
      double guarded = 0;
      for (const auto& owner : outcome.kept->guarded) guarded += static_cast<double>(owner.size());
      const int heads = outcome.kept->per_query_head ? 1 : work_.group_size();
      for (double& count : counts) count -= guarded * heads;
    }
    if (scope_ == Scope::all)
      for (size_t t = 0; t < counts.size(); ++t) {
        const int64_t position = info.later_queries()[t];
        counts[t] = static_cast<double>(work_.query_heads()) * static_cast<double>(position + 1);
      }
    return counts;
  }
  const std::vector<Moments>& of_handle(int handle) const {
    const int set = handle < 0 ? PlanBuilder::Plans::kEverything : replay_.plans().set[handle];
    return set < 0 ? sets_.back() : sets_[set];
  }
  std::vector<Moments> with_later(std::vector<Moments> moments) const {
    for (size_t t = 0; t < later_.size(); ++t) moments[t] += later_[t];
    return moments;
  }

  LayerWork& work_;
  const PrefillReplay& replay_;
  Scope scope_;
  std::vector<std::vector<Moments>> sets_;  ///< [set][T]; the last is the whole prompt
  std::vector<Moments> later_;              ///< [T], scope all only
};

struct ImportanceCorrelation : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.epochs = true}; }
  void start(const MeasuredLayer& layer) override { seen_.assign(layer.replay.count(), {}); }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums == nullptr || view.sums->kept.squares.empty()) return;
    SeenMoments& seen = seen_[view.outcome];
    fill(seen.kept, block.first_step, view.sums->kept.importance, view.sums->kept.squares);
    if (view.sums->total.squares.empty()) return;
    fill(seen.all, block.first_step, view.sums->total.importance, view.sums->total.squares);
    seen.pairs.resize(run().info.steps());
    std::ranges::copy(view.sums->entries, seen.pairs.begin() + block.first_step);
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const LayerMoments moments(layer.work, layer.replay.prefill(), run().options.scope);
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const ReplayOutcome& outcome = layer.replay.outcome(o);
      const bool decoded = !seen_[o].all.empty();
      const bool prefill = o < layer.replay.prefill().outcomes().size();
      if (!outcome.shares_defined || (!decoded && !prefill)) return;
      write(cell, layer.index, 0, decoded ? seen_[o] : moments.of(outcome, seen_[o].kept), results);
    });
  }
  /// Does it for one stretch of a periodic record, whose prompt is longer.
  void see_epoch(const MeasuredEpoch& epoch, MeasureResults& results) override {
    const LayerMoments moments(epoch.prompt, epoch.replay, run().options.scope);
    for (const ReplayOutcome& outcome : epoch.replay.outcomes()) {
      if (!outcome.shares_defined) continue;
      for (const ReplayCell cell : outcome.cells)
        write({epoch.record, cell.budget}, epoch.index, epoch.first_step, moments.of(outcome),
              results);
    }
  }

 private:
  void fill(std::vector<Moments>& moments, int64_t first, const Table<double>& sums,
            const Table<double>& squares) const {
    moments.resize(run().info.steps());
    const std::vector<double> sum = over_heads(sums), square = over_heads(squares);
    for (size_t s = 0; s < sum.size(); ++s)
      moments[static_cast<size_t>(first) + s] = {sum[s], square[s]};
  }
  static void write(ReplayCell cell, int64_t layer, int64_t first, const SeenMoments& moments,
                    MeasureResults& results) {
    std::vector<double> pearson, cosine;
    for (size_t t = 0; t < moments.all.size(); ++t) {
      pearson.push_back(
          kvsim::importance_pearson(moments.all[t], moments.kept[t], moments.pairs[t]));
      cosine.push_back(kvsim::importance_cosine(moments.all[t], moments.kept[t]));
    }
    results.copy("importance_pearson", {cell.record, cell.budget, layer}, pearson, first);
    results.copy("importance_cosine", {cell.record, cell.budget, layer}, cosine, first);
  }

  std::vector<SeenMoments> seen_;  ///< [outcome] of those that are chosen per step or decode
};
const RegisterMeasure<ImportanceCorrelation> register_importance_correlation(
    {.name = "importance_correlation", .place = 501},
    {{"importance_pearson", kOverSteps, "1", "correlation with the full cache",
      "Pearson of I and I * [kept] over all heads and entries that could be dropped"},
     {"importance_cosine", kOverSteps, "1", "cosine with the full cache",
      "sqrt(sum of squares kept / sum of squares)"}});

}  // namespace
}  // namespace kvsim::measures::retained
