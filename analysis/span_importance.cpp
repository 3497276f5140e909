// Class scores (metrics.md 6): retained importance within each span, and whether compression
// changes the order of the spans.
#include <cmath>

#include "analysis/measure.hpp"
#include "analysis/retained.hpp"
#include "analysis/statistics.hpp"
#include "analysis/summary.hpp"

namespace kvsim::measures::span_importance {
namespace {

const DeclareMeasure measure(
    {.name = "span_importance", .place = 320},
    {{"span_retained_importance", "policy budget layer span", "1",
      "class score: retained importance of a span",
      "share of the importance of the span's own entries that falls on kept ones, pooled over "
      "query heads, mean over steps; a proxy of how well the instruction survives",
      Needs{&kSpans}, When{&kAlways}},
     {"span_spearman", "policy budget", "1", "order of the spans under compression",
      "Spearman over the trace's spans of their class scores (mean over layers) with those at the "
      "largest budget below n; NaN for fewer than 2 spans or equal scores",
      Needs{&kSpans}, When{&kAlways}},
     {"span_retained_importance_step", "policy budget layer span step", "1",
      "retained importance of a span", "the same at each step", Needs{&kSpans}}});

class SpanImportance : public Measure {
 public:
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.span_parts = true}; }
  void start(const MeasuredLayer& layer) override {
    spans_.assign(layer.replay.count(), StepSeries(run().spans.size(), run().info.steps()));
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums == nullptr || view.sums->part_kept.empty()) return;
    for (size_t p = 0; p < run().spans.size(); ++p) {
      const auto row = static_cast<int64_t>(p);
      const auto shares = spans_[static_cast<size_t>(view.outcome)].part(
          static_cast<int>(p), block.first_step, block.steps);
      for (int64_t s = 0; s < block.steps; ++s)
        shares[static_cast<size_t>(s)] = retained_share(view.sums->part_kept(row, s),
                                                        view.sums->part_total(row, s));
    }
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      for (size_t p = 0; p < run().spans.size(); ++p) {
        const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index,
                                                   static_cast<int64_t>(p)};
        results.set("span_retained_importance", at, mean(spans_[o][p]));
        results.copy("span_retained_importance_step", at, spans_[o][p]);
      }
    });
  }
  /// Nothing is generated, and without compression all scores are 1, so that the largest budget
  /// below n stands for the order to be kept.
  void finish_run(MeasureResults& results) override {
    const auto policies = static_cast<int64_t>(run().options.records.size());
    const auto budgets = static_cast<int64_t>(run().options.budgets.size());
    const int64_t reference = largest_budget();
    const auto undefined = [](double score) { return std::isnan(score); };
    for (int64_t p = 0; p < policies && reference >= 0; ++p) {
      const std::vector<double> wanted = scores(p, reference, results);
      for (int64_t b = 0; b < budgets; ++b) {
        const std::vector<double> own = scores(p, b, results);
        if (std::ranges::any_of(own, undefined) || std::ranges::any_of(wanted, undefined)) continue;
        results.set("span_spearman", {p, b}, spearman(own, wanted));
      }
    }
  }

 private:
  /// Below n; -1: none.
  int64_t largest_budget() const {
    int64_t largest = -1, most = -1;
    for (size_t b = 0; b < run().options.budgets.size(); ++b) {
      const int64_t entries = run().options.budgets[b].entries(run().info.prompt_len);
      if (entries >= run().info.prompt_len || entries <= most) continue;
      largest = static_cast<int64_t>(b);
      most = entries;
    }
    return largest;
  }
  /// Of the labelled spans, mean over layers.
  std::vector<double> scores(int64_t policy, int64_t budget, MeasureResults& results) const {
    std::vector<double> classes;
    for (size_t s = 0; s < run().spans.size(); ++s) {
      std::vector<double> layers;
      for (int64_t layer = 0; layer < results.size("layer"); ++layer)
        layers.push_back(results.row("span_retained_importance",
                                     {policy, budget, layer, static_cast<int64_t>(s)})[0]);
      if (run().spans[s].labelled) classes.push_back(mean(layers));
    }
    return classes;
  }

  std::vector<StepSeries> spans_;  ///< [outcome] each [spans][T]
};
const RegisterMeasure<SpanImportance> registered(measure);

}  // namespace
}  // namespace kvsim::measures::span_importance
