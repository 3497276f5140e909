#include "cli/parse.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "sim/core/decimal.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli {
namespace {

constexpr int64_t kMostItems = 10000;  // of one range; more is a slip of the keyboard

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(trimmed(text.substr(0, at)));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string in_quotes(std::string_view text) { return "\"" + std::string(text) + "\""; }

/// How the numbers of a range are written.
struct Kind {
  bool percent = false;
  bool point = false;
};

Decimal parse_number(std::string_view text, const std::string& option) {
  const auto number = Decimal::parse(text);
  if (!number)
    usage_error({.what = "not a number",
                 .where = option,
                 .found = in_quotes(text),
                 .expected = "0.2, 20% or 512"});
  return *number;
}

std::string in_kind(const Decimal& number, Kind kind) {
  std::string text = number.text();
  if (kind.point && text.find('.') == std::string::npos) text += ".0";
  return kind.percent ? text + "%" : text;
}

/// Decimal::parse turns 20% into 0.2; inside a percent range the numbers stay percents.
Decimal without_percent(std::string_view text, const std::string& option) {
  if (!text.empty() && text.back() == '%') text.remove_suffix(1);
  return parse_number(text, option);
}

void expand_range(std::string_view item, const std::string& option,
                  std::vector<std::string>& items) {
  const auto parts = split(item, ':');
  if (parts.size() != 3)
    usage_error({.what = "bad range",
                 .where = option,
                 .found = in_quotes(item),
                 .expected = "FIRST:LAST:STEP, e.g. 0.1:0.9:0.1"});
  Kind kind;
  size_t percents = 0;
  for (const std::string_view part : parts) {
    percents += part.ends_with('%') ? 1 : 0;
    kind.point = kind.point || part.find('.') != std::string_view::npos;
  }
  kind.percent = percents > 0;
  if (percents == 1 && !parts[0].ends_with('%') && !parts[1].ends_with('%'))
    usage_error({.what = "bad range",
                 .where = option,
                 .found = in_quotes(item),
                 .expected = "% at FIRST and LAST, too"});
  const Decimal first = without_percent(parts[0], option);
  const Decimal last = without_percent(parts[1], option);
  const Decimal step = without_percent(parts[2], option);
  if (!(Decimal(0) < step) || last < first)
    usage_error({.what = "bad range",
                 .where = option,
                 .found = in_quotes(item),
                 .expected = "FIRST <= LAST and STEP > 0"});
  for (int64_t i = 0;; ++i) {
    const auto number = first.advanced(step, i);
    if (!number || last < *number) return;
    if (i == kMostItems)
      usage_error({.what = "range too long",
                   .where = option,
                   .found = in_quotes(item),
                   .expected = "at most " + std::to_string(kMostItems) + " numbers"});
    items.push_back(in_kind(*number, kind));
  }
}

/// A bound at the end of what a double can hold is none.
std::string between(double least, double most) {
  constexpr double kHuge = 1e300;
  if (most < kHuge) return shortest(least) + " to " + shortest(most);
  return least > 0 && least < 1 / kHuge ? "a number above 0" : shortest(least) + " or more";
}

}  // namespace

std::vector<std::string> split_list(std::string_view text, const std::string& option) {
  std::vector<std::string> items;
  for (const std::string_view part : split(text, ',')) {
    if (part.empty())
      usage_error({.what = "empty item in a list", .where = option, .found = in_quotes(text)});
    items.emplace_back(part);
  }
  return items;
}

std::vector<int> parse_layers(std::string_view text, const std::string& option) {
  constexpr int64_t kMostLayers = 100000;
  std::vector<int> layers;
  for (const std::string& item : split_list(text, option)) {
    const size_t dash = item.find('-', 1);
    const int64_t first = parse_count(item.substr(0, dash), option, 0, kMostLayers);
    const int64_t last = dash == std::string::npos
                             ? first
                             : parse_count(item.substr(dash + 1), option, 0, kMostLayers);
    if (last < first)
      usage_error({.what = "bad range of layers",
                   .where = option,
                   .found = in_quotes(item),
                   .expected = "FIRST-LAST with FIRST <= LAST"});
    for (int64_t layer = first; layer <= last; ++layer) layers.push_back(static_cast<int>(layer));
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

std::vector<std::string> expand_numbers(std::string_view text, const std::string& option) {
  std::vector<std::string> items;
  for (const std::string& item : split_list(text, option)) {
    if (item.find(':') != std::string::npos) {
      expand_range(item, option, items);
    } else {
      parse_number(item, option);
      items.push_back(item);
    }
  }
  return items;
}

int64_t parse_count(std::string_view text, const std::string& option, int64_t least, int64_t most) {
  int64_t value = 0;
  text = trimmed(text);
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string range = "a whole number from " + std::to_string(least) + " to " +
                            std::to_string(most);
  if (fault != std::errc() || end != text.data() + text.size() || text.empty())
    usage_error({.what = "not a whole number",
                 .where = option,
                 .found = in_quotes(text),
                 .expected = range});
  if (value < least || value > most)
    usage_error(
        {.what = "out of range", .where = option, .found = in_quotes(text), .expected = range});
  return value;
}

double parse_real(std::string_view text, const std::string& option, double least, double most) {
  const auto number = Decimal::parse(trimmed(text));
  if (!number) usage_error({.what = "not a number", .where = option, .found = in_quotes(text)});
  const double value = number->value();
  if (!std::isfinite(value) || value < least || value > most)
    usage_error({.what = "out of range",
                 .where = option,
                 .found = in_quotes(text),
                 .expected = between(least, most)});
  return value;
}

}  // namespace kvsim::cli
