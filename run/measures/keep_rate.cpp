// Whose tokens go (metrics.md 4): keep rates of labelled spans and their bias.
#include "analysis/keep_rate.hpp"

#include "run/measures/conditions.hpp"

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

class KeepRate : public Measure {
 public:
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const auto [p, b] = cell;
      const KeptSets& sets = *layer.replay.outcome(o).kept;
      const double line = unbiased_rate(sets.owners, run().info.prompt_len);
      std::vector<double> rates;
      for (const SpanTokens& span : run().spans) {
        const auto s = static_cast<int64_t>(rates.size());
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
