#include <algorithm>
#include <cmath>

#include "tests/reference/kinds.hpp"

namespace kvsim::reference {
namespace {

/// The span of that name, or a-b.
Range range_of(const TraceInfo& info, const std::string& item) {
  for (const Span& span : info.spans)
    if (span.name == item) return {span.begin, span.end};
  const size_t dash = item.find('-');
  return {std::stoll(item.substr(0, dash)), std::stoll(item.substr(dash + 1))};
}

std::vector<int64_t> from_to(int64_t begin, int64_t end) {
  std::vector<int64_t> positions;
  for (int64_t j = begin; j < end; ++j) positions.push_back(j);
  return positions;
}

int64_t share_of_newest(const PolicyCase& c) {
  return std::min(std::max<int64_t>(1, c.share("window", c.entries())), c.n());
}

std::vector<int64_t> spread(const PolicyCase& c, const Part&) {
  const int64_t count = std::min(c.settings.count("spread_queries"), c.n());
  std::vector<int64_t> positions;
  for (int64_t r = 1; r <= count; ++r)
    positions.push_back((Rational(r * c.n()) / Rational(count)).floor() - 1);
  return positions;
}

std::vector<int64_t> future(const PolicyCase& c, const Part&) {
  std::vector<int64_t> positions;
  for (const int64_t j : c.info->query_position)
    if (j >= c.n()) positions.push_back(j);
  return positions;
}

const References<QueriesReference> queries{
    {"none", {[](const PolicyCase&, const Part&) { return from_to(0, 0); }}},
    {"window",
     {.positions =
          [](const PolicyCase&, const Part& part) {
  return from_to(part.range.end - part.window, part.range.end);
      },
      .window = share_of_newest}},
    {"last", {[](const PolicyCase& c, const Part&) {
       return from_to(c.n() - std::min(c.settings.count("last_queries"), c.n()), c.n());
     }}},
    {"all", {[](const PolicyCase& c, const Part&) { return from_to(0, c.n()); }}},
    {"spread", {spread}},
    {"future", {future}},
    };

}  // namespace

std::map<std::string, std::set<std::string>>& references() {
  static std::map<std::string, std::set<std::string>> names;
  return names;
}

Rational PolicyCase::ratio() const {
  return is_count() ? Rational(std::min<int64_t>(std::stoll(budget), n())) / Rational(n())
                    : Rational::parse(budget);
}

int64_t PolicyCase::entries() const {
  if (is_count()) return std::min<int64_t>(std::stoll(budget), n());
  if (settings.is("rounding", "exact")) return (ratio() * Rational(n())).floor();
  const double r = (Rational(1) - ratio()).value();
  return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(n()) * (1.0 - r)));
}

int64_t PolicyCase::share(const char* key, int64_t whole) const {
  const std::string& text = settings.text(key);
  const Rational value = Rational::parse(text);
  return text.find('.') == std::string::npos ? value.floor() : (value * Rational(whole)).floor();
}

int64_t PolicyCase::window() const {
  const auto& kind = References<QueriesReference>::of(settings);
  return kind.window ? kind.window(*this) : 0;
}

bool PolicyCase::rescored() const {
  if (settings.is("constrain", "none") || settings.is("fair_scores", "default")) return false;
  const bool unconstrained = settings.is("constrain", "debias") &&
                             Rational::parse(settings.text("debias_lambda")) == 0;
  return !unconstrained;
}

bool PolicyCase::skips(int layer) const {
  const auto listed = settings.list("skip_layers");
  return std::find(listed.begin(), listed.end(), std::to_string(layer)) != listed.end();
}

std::vector<Range> PolicyCase::segments() const {
  if (settings.is("constrain", "none")) return {{0, n()}};
  std::vector<Range> spans;
  if (settings.is("fair_spans", "all")) {
    for (const Span& span : info->spans) spans.push_back({span.begin, span.end});
  } else {
    for (const std::string& item : settings.list("fair_spans"))
      spans.push_back(range_of(*info, item));
  }
  std::sort(spans.begin(), spans.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> segments;
  for (size_t k = 0; k < spans.size(); ++k)
    segments.push_back(
        {k == 0 ? 0 : spans[k].begin, k + 1 == spans.size() ? n() : spans[k + 1].begin});
  return segments;
}

std::vector<Part> parts_of(const PolicyCase& c) {
  const std::vector<Range> ranges = c.rescored() ? c.segments() : std::vector<Range>{{0, c.n()}};
  const auto count = static_cast<int64_t>(ranges.size());
  const auto& kind = References<QueriesReference>::of(c.settings);
  const int64_t m = c.window();
  std::vector<Part> parts;
  for (int64_t k = 0; k < count; ++k) {
    Part part;
    part.range = ranges[static_cast<size_t>(k)];
    if (kind.window) {
      int64_t own = count == 1 ? m : std::max<int64_t>(1, m / count);
      if (count > 1 && k == count - 1) own = std::max<int64_t>(1, m - (count - 1) * (m / count));
      part.window = std::min(own, part.range.size());
    }
    part.queries = kind.positions(c, part);
    const auto& join = References<JoinReference>::of(c.settings);
    if (join.of) {
      part.prompt_queries = std::ssize(part.queries);
      const std::vector<int64_t> more = probe_queries(c);
      part.queries.insert(part.queries.end(), more.begin(), more.end());
    }
    for (int64_t i = part.range.begin; i < part.range.end - part.window; ++i)
      part.candidates.push_back(i);
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<int64_t> apportion(int64_t total, const Row& weights, int64_t cap) {
  std::vector<int64_t> share(weights.size(), -1);  // -1: still open
  Row x = weights;
  if (std::all_of(x.begin(), x.end(), [](double w) { return w == 0; })) x.assign(x.size(), 1.0);
  while (true) {
    double sum = 0;
    size_t open = 0;
    int64_t rest = total;
    for (size_t k = 0; k < x.size(); ++k) {
      if (share[k] >= 0)
        rest -= share[k];
      else
        sum += x[k], ++open;
    }
    if (open == 0) return share;
    std::vector<int64_t> given(x.size(), 0);
    Row fraction(x.size(), -1);
    int64_t left = rest;
    for (size_t k = 0; k < x.size(); ++k) {
      if (share[k] >= 0) continue;
      const double quota = sum > 0 ? static_cast<double>(rest) * x[k] / sum
                                   : static_cast<double>(rest) / static_cast<double>(open);
      double whole = std::floor(quota);
      if (quota - whole > 1 - 1e-9) whole += 1;  // an integer but for rounding
      given[k] = static_cast<int64_t>(whole);
      fraction[k] = quota - whole;
      left -= given[k];
    }
    for (; left > 0; --left) {
      size_t best = x.size();
      for (size_t k = 0; k < x.size(); ++k)
        if (share[k] < 0 && (best == x.size() || fraction[k] > fraction[best] + 1e-9)) best = k;
      ++given[best];
      fraction[best] = -1;
    }
    bool above = false;
    for (size_t k = 0; k < x.size(); ++k)
      if (share[k] < 0 && given[k] > cap) share[k] = cap, above = true;
    if (above) continue;
    for (size_t k = 0; k < x.size(); ++k)
      if (share[k] < 0) share[k] = given[k];
    return share;
  }
}

}  // namespace kvsim::reference
