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

}  // namespace kvsim

namespace kvsim::measures::retained {
namespace {

const DeclareMeasure measure(
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

struct Retained : Measure {
  using Measure::Measure;

  void start(const MeasuredLayer& layer) override {
    const size_t outcomes = layer.replay.count();
    importance_ = attention_ = StepSeries(outcomes, run().info.steps());
    if (!run().options.per_head) return;
    const StepSeries heads(run().info.num_query_heads, run().info.steps());
    importance_heads_.assign(outcomes, heads);
    attention_heads_.assign(outcomes, heads);
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums == nullptr) return;
    retained_pooled(view.sums->kept.importance, view.sums->total.importance,
                    importance_.part(view.outcome, block.first_step, block.steps));
    retained_pooled(view.sums->kept.attention, view.sums->total.attention,
                    attention_.part(view.outcome, block.first_step, block.steps));
    for (int h = 0; run().options.per_head && h < run().info.num_query_heads; ++h) {
      retained_of_head(view.sums->kept.importance, view.sums->total.importance, h,
                       importance_heads_[view.outcome].part(h, block.first_step, block.steps));
      retained_of_head(view.sums->kept.attention, view.sums->total.attention, h,
                       attention_heads_[view.outcome].part(h, block.first_step, block.steps));
    }
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index};
      results.copy("retained_importance", at, importance_[o]);
      results.copy("retained_attention", at, attention_[o]);
      results.set("retained_importance_mean", at, mean(importance_[o]));
      results.set("retained_importance_min", at, minimum(importance_[o]));
      results.set("retained_importance_p01", at, percentile(importance_[o], 1));
      results.set("retained_attention_mean", at, mean(attention_[o]));
      results.set("retained_attention_min", at, minimum(attention_[o]));
      results.set("retained_attention_p01", at, percentile(attention_[o], 1));
      results.set("outlier_count", at, outlier_count_of(importance_[o]));
      for (int h = 0; run().options.per_head && h < run().info.num_query_heads; ++h) {
        const std::initializer_list<int64_t> of_head = {cell.record, cell.budget, layer.index, h};
        results.copy("retained_importance_head", of_head, importance_heads_[o][h]);
        results.copy("retained_attention_head", of_head, attention_heads_[o][h]);
      }
    });
  }

 private:
  double outlier_count_of(const std::vector<double>& series) const {
    return kvsim::outlier_count(series, run().options.outlier);
  }

  StepSeries importance_, attention_;
  std::vector<StepSeries> importance_heads_, attention_heads_;  ///< [outcome] each [Hq][T]
};
const RegisterMeasure<Retained> registered(measure);

}  // namespace
}  // namespace kvsim::measures::retained
