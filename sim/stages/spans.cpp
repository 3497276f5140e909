#include "sim/stages/spans.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "sim/core/error.hpp"

namespace kvsim {
namespace {

/// "12-19" as a range, nothing if it is a name.
std::optional<Range> as_range(std::string_view text) {
  Range range;
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto read = [](std::string_view digits, int64_t& value) {
    const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return fault == std::errc() && end == digits.data() + digits.size() && !digits.empty() &&
           digits[0] != '-';
  };
  if (!read(text.substr(0, dash), range.begin) || !read(text.substr(dash + 1), range.end))
    return std::nullopt;
  return range;
}

}  // namespace

std::string span_list_fault(std::string_view text) {
  while (true) {
    const size_t end = std::min(text.find('+'), text.size());
    const std::string_view item = text.substr(0, end);
    if (item.empty()) return "an empty name between '+'";
    const auto range = as_range(item);
    if (range && range->begin >= range->end) return "an empty range " + std::string(item);
    if (end == text.size()) return "";
    text.remove_prefix(end + 1);
  }
}

std::vector<Range> resolve_spans(const std::vector<std::string>& items,
                                 const std::vector<Span>& spans, int64_t entries) {
  std::vector<Range> ranges;
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name);
  for (const std::string& item : items) {
    const auto named = std::find(names.begin(), names.end(), item);
    if (named != names.end()) {
      const Span& span = spans[static_cast<size_t>(named - names.begin())];
      ranges.push_back({span.begin, span.end});
    } else if (const auto range = as_range(item)) {
      if (range->begin >= entries)
        bad_data({.what = "a range behind the prompt",
                  .where = "span " + item,
                  .expected = "entries 0 to " + std::to_string(entries - 1)});
      ranges.push_back({std::min(range->begin, entries), std::min(range->end, entries)});
    } else {
      bad_data({.what = "no such span in the trace",
                .where = "span " + item,
                .found = names.empty() ? "a trace without spans" : "",
                .expected = "a span name of the trace or a range a-b",
                .hint = did_you_mean(item, names)});
    }
  }
  return ranges;
}

}  // namespace kvsim
