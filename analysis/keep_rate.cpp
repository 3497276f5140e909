// Class scores (metrics.md 6): retained importance within each span, and whether compression
// changes the order of the spans.
#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {

int64_t SpanTokens::tokens() const {
  int64_t sum = 0;
  for (const Range& range : ranges) sum += range.size();
  return sum;
}

std::vector<SpanTokens> span_tokens(const TraceInfo& info,
                                    const std::vector<std::string>& complements) {
  std::vector<SpanTokens> all;
  std::vector<std::string> names;
  for (const Span& span : info.spans) {
    all.push_back({span.name, {{span.begin, span.end}}, true});
    names.push_back(span.name);
  }
  for (const std::string& name : complements) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      bad_data({.what = "no span '" + name + "'",
                .where = info.path,
                .hint = did_you_mean(name, names)});
    const Span& span = info.spans[found - names.begin()];
    SpanTokens outside{"!" + name, {}, false};
    for (const Range range : {Range{0, span.begin}, Range{span.end, info.prompt_len}})
      if (range.size() > 0) outside.ranges.push_back(range);
    all.push_back(std::move(outside));
  }
  return all;
}

double keep_rate_of_head(const KeptEntries& kept, const SpanTokens& span) {
  const int64_t tokens = span.tokens();
  if (tokens == 0) return kUndefined;
  int64_t count = 0;
  for (const Range& range : span.ranges) {
    const auto begin = std::lower_bound(kept.begin(), kept.end(), range.begin);
    count += std::lower_bound(begin, kept.end(), range.end) - begin;
  }
  return static_cast<double>(count) / static_cast<double>(tokens);
}

double keep_rate(const std::vector<KeptEntries>& heads, const SpanTokens& span) {
  double sum = 0;
  for (const KeptEntries& kept : heads) sum += keep_rate_of_head(kept, span);
  return sum / static_cast<double>(heads.size());
}

double unbiased_rate(const std::vector<KeptEntries>& heads, int64_t prompt_len) {
  size_t kept = 0;
  for (const KeptEntries& head : heads) kept += head.size();
  return static_cast<double>(kept) / static_cast<double>(heads.size()) /
         static_cast<double>(prompt_len);
}

double bias_spread(std::span<const double> rates, const std::vector<SpanTokens>& spans) {
  std::vector<double> labelled;
  for (size_t s = 0; s < spans.size(); ++s)
    if (spans[s].labelled) labelled.push_back(rates[s]);
  return maximum(labelled) - minimum(labelled);
}

}  // namespace kvsim

namespace kvsim::measures::keep_rate {
namespace {

const DeclareMeasure measure(
    {.name = "keep_rate", .place = 310, .when = &kAlways},
    {{"keep_rate", "policy budget layer span", "1", "kept share of a span",
      "mean over the span's tokens and the heads of [kept]", Needs{&kSpans}},
     {"bias_index", "policy budget layer span", "1", "keep rate above the unbiased line",
      "keep_rate minus the share of all entries that the layer keeps; 0 is unbiased",
      Needs{&kSpans}},
     {"bias_spread", "policy budget layer", "1", "spread of keep rates",
      "largest minus smallest keep_rate over the spans of the trace", Needs{&kSpans}},
     {"keep_rate_head", "policy budget layer kv_head span", "1",
      "kept share of a span in one KV head", "NaN for policies with granularity=query",
      Needs{&kSpans, &kPerHead}}});

struct KeepRate : Measure {
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const auto [p, b] = cell;
      const KeptSets& sets = *layer.replay.outcome(o).kept;
      const double line = unbiased_rate(sets.owners, run().info.prompt_len);
      std::vector<double> rates;
      for (const SpanTokens& span : run().spans) {
        const auto s = std::ssize(rates);
        rates.push_back(kvsim::keep_rate(sets.owners, span));
        results.set("keep_rate", {p, b, layer.index, s}, rates.back());
        results.set("bias_index", {p, b, layer.index, s}, rates.back() - line);
        for (size_t h = 0; !sets.per_query_head && h < sets.owners.size(); ++h)
          results.set("keep_rate_head", {p, b, layer.index, static_cast<int64_t>(h), s},
                      keep_rate_of_head(sets.owners[h], span));
      }
      results.set("bias_spread", {p, b, layer.index}, kvsim::bias_spread(rates, run().spans));
    });
  }
};
const RegisterMeasure<KeepRate> registered(measure);

}  // namespace
}  // namespace kvsim::measures::keep_rate

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

struct SpanImportance : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.span_parts = true}; }
  void start(const MeasuredLayer& layer) override {
    spans_.assign(layer.replay.count(), StepSeries(run().spans.size(), run().info.steps()));
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums == nullptr || view.sums->part_kept.empty()) return;
    for (size_t p = 0; p < run().spans.size(); ++p) {
      const auto row = static_cast<int64_t>(p);
      const auto shares = spans_[view.outcome].part(static_cast<int>(p), block.first_step,
                                                    block.steps);
      for (int64_t s = 0; s < block.steps; ++s)
        shares[s] = retained_share(view.sums->part_kept(row, s), view.sums->part_total(row, s));
    }
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      for (int64_t p = 0; p < std::ssize(run().spans); ++p) {
        const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index, p};
        results.set("span_retained_importance", at, mean(spans_[o][p]));
        results.copy("span_retained_importance_step", at, spans_[o][p]);
      }
    });
  }
  /// Nothing is generated, and without compression all scores are 1, so that the largest budget
  /// below n stands for the order to be kept.
  void finish_run(MeasureResults& results) override {
    const auto policies = std::ssize(run().options.records);
    const auto budgets = std::ssize(run().options.budgets);
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
    for (int64_t b = 0; b < std::ssize(run().options.budgets); ++b) {
      const int64_t entries = run().options.budgets[b].entries(run().info.prompt_len);
      if (entries >= run().info.prompt_len || entries <= most) continue;
      largest = b;
      most = entries;
    }
    return largest;
  }
  /// Of the labelled spans, mean over layers.
  std::vector<double> scores(int64_t policy, int64_t budget, MeasureResults& results) const {
    std::vector<double> classes;
    for (int64_t s = 0; s < std::ssize(run().spans); ++s) {
      std::vector<double> layers;
      for (int64_t layer = 0; layer < results.size("layer"); ++layer)
        layers.push_back(results.row("span_retained_importance", {policy, budget, layer, s})[0]);
      if (run().spans[s].labelled) classes.push_back(mean(layers));
    }
    return classes;
  }

  std::vector<StepSeries> spans_;  ///< [outcome] each [spans][T]
};
const RegisterMeasure<SpanImportance> registered(measure);

}  // namespace
}  // namespace kvsim::measures::span_importance
