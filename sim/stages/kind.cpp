#include "sim/stages/kind.hpp"

#include <charconv>

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

/// By stage and name.
using KindTable = std::map<std::pair<std::string, std::string>, const Kind*>;

KindTable& table() {
  static KindTable kinds;
  return kinds;
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
      const Span& span = spans[named - names.begin()];
      ranges.push_back({span.begin, span.end});
    } else if (const auto range = as_range(item)) {
      if (range->begin >= entries)
        bad_data({"a range behind the prompt", "span " + item, "",
                  "entries 0 to " + std::to_string(entries - 1)});
      ranges.push_back({std::min(range->begin, entries), std::min(range->end, entries)});
    } else {
      bad_data({"no such span in the trace", "span " + item,
                names.empty() ? "a trace without spans" : "",
                "a span name of the trace or a range a-b", did_you_mean(item, names)});
    }
  }
  return ranges;
}

void announce_kind(const Kind& kind) {
  const KindInfo& info = kind.info();
  if (!table().emplace(std::pair(info.stage, info.name), &kind).second)
    throw std::logic_error("kind registered twice: " + info.stage + "=" + info.name);
}

const Kind& find_kind(std::string_view stage, std::string_view name) {
  const auto found = table().find(std::pair(std::string(stage), std::string(name)));
  if (found == table().end()) throw std::logic_error("no such kind: " + std::string(name));
  return *found->second;
}

std::vector<const KindInfo*> all_kinds() {
  std::vector<const KindInfo*> all;
  for (const auto& [name, kind] : table()) all.push_back(&kind->info());
  return all;
}

std::vector<const KindInfo*> kinds_of_stage(std::string_view stage) {
  std::vector<const KindInfo*> found;
  for (auto at = table().lower_bound({std::string(stage), ""});
       at != table().end() && at->first.first == stage; ++at)
    found.push_back(&at->second->info());
  return found;
}

}  // namespace kvsim
