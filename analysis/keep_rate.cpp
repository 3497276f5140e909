#include "analysis/keep_rate.hpp"

#include <algorithm>
#include <limits>

#include "analysis/summary.hpp"
#include "sim/core/error.hpp"
#include "sim/core/nearest.hpp"

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
