#include <algorithm>
#include <limits>

#include "analysis/measure.hpp"
#include "analysis/span_tokens.hpp"
#include "analysis/summary.hpp"
#include "sim/core/error.hpp"

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
    if (found == names.end()) {
      bad_data({.what = "no span '" + name + "'",
                .where = info.path,
                .hint = did_you_mean(name, names)});
    }
    const Span& span = info.spans[static_cast<size_t>(found - names.begin())];
    SpanTokens outside{"!" + name, {}, false};
    for (const Range range : {Range{0, span.begin}, Range{span.end, info.prompt_len}}) {
      if (range.size() > 0) outside.ranges.push_back(range);
    }
    all.push_back(std::move(outside));
  }
  return all;
}

double keep_rate_of_head(const KeptEntries& kept, const SpanTokens& span) {
  const int64_t tokens = span.tokens();
  if (tokens == 0) return std::numeric_limits<double>::quiet_NaN();
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
  for (size_t s = 0; s < spans.size(); ++s) {
    if (spans[s].labelled) labelled.push_back(rates[s]);
  }
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
