#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Fault of a list of span names and ranges a-b joined by '+', or "".
std::string span_list_fault(std::string_view text);

/// Ranges of a whitelist: names of the trace's spans, or half-open ranges a-b cut to [0, n).
/// A name that the trace does not have is bad data.
std::vector<Range> resolve_spans(const std::vector<std::string>& items,
                                 const std::vector<Span>& spans, int64_t entries);

}  // namespace kvsim
