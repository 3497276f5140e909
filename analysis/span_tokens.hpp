#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Kept entries of one head, ascending.
using KeptEntries = std::vector<uint32_t>;

/// The prompt tokens that one entry of the dimension `span` stands for.
struct SpanTokens {
  std::string name;
  std::vector<Range> ranges;  ///< disjoint, ascending
  bool labelled = true;       ///< a span of the trace, not a complement

  int64_t tokens() const;
};

/// The spans of a trace, then `!NAME` for each name of `complements`: the prompt tokens outside
/// NAME. An unknown name is bad data.
std::vector<SpanTokens> span_tokens(const TraceInfo& info,
                                    const std::vector<std::string>& complements);

/// Share of the span's tokens that one head kept; NaN for an empty span.
double keep_rate_of_head(const KeptEntries& kept, const SpanTokens& span);

/// Mean of keep_rate_of_head over the heads (metrics.md 4).
double keep_rate(const std::vector<KeptEntries>& heads, const SpanTokens& span);

/// Share of all entries of the layer that is kept: what every span would have if eviction did not
/// look at spans.
double unbiased_rate(const std::vector<KeptEntries>& heads, int64_t prompt_len);

/// Largest minus smallest keep rate over the labelled spans; `rates` belong to `spans`.
double bias_spread(std::span<const double> rates, const std::vector<SpanTokens>& spans);

}  // namespace kvsim
