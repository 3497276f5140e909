#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "tests/reference/kinds.hpp"
#include "tests/reference/policy_allocation.hpp"

namespace kvsim::reference {
namespace {

std::vector<Range> whitelist_of(const PolicyCase& c) {
  std::vector<Range> ranges;
  for (const std::string& item : c.settings.list("whitelist")) {
    Range range{-1, -1};
    for (const Span& span : c.info->spans)
      if (span.name == item) range = {span.begin, span.end};
    if (range.begin < 0) {
      const size_t dash = item.find('-');
      range = {std::stoll(item.substr(0, dash)), std::stoll(item.substr(dash + 1))};
    }
    ranges.push_back({range.begin, std::min(range.end, c.n())});
  }
  return ranges;
}

int64_t whitelisted(const PolicyCase& c) {
  std::set<int64_t> all;
  for (const Range& range : whitelist_of(c))
    for (int64_t i = range.begin; i < range.end; ++i) all.insert(i);
  return static_cast<int64_t>(all.size());
}

void append(std::vector<int64_t>& list, int64_t i) {
  if (std::find(list.begin(), list.end(), i) == list.end()) list.push_back(i);
}

/// Protected entries of a range, in the order in which they are granted. `whole`: B or the share.
std::vector<int64_t> protection(const PolicyCase& c, const Scores& scores, int owner, Range range,
                                bool first, bool last, int64_t window, int64_t whole) {
  std::vector<int64_t> granted;
  for (const Range& listed : whitelist_of(c))
    for (int64_t i = listed.begin; i < listed.end; ++i)
      if (range.contains(i)) append(granted, i);
  for (int64_t i = 0; first && i < c.settings.count("sinks"); ++i)
    if (range.contains(i)) append(granted, i);
  int64_t recent = last ? c.share("recent", whole) : 0;
  if (last && scores.layer == 0) recent = std::max(recent, c.share("first_layer_recent", whole));
  for (int64_t i = range.end - 1; i >= range.begin; --i)
    if (i >= range.end - std::max(window, recent)) append(granted, i);
  const Rational std_keep = Rational::parse(c.settings.text("std_keep"));
  const int64_t spread = (std_keep * Rational(whole)).floor() - recent;
  std::vector<int64_t> others;
  for (int64_t i = range.begin; i < range.end; ++i)
    if (scores.candidate[static_cast<size_t>(i)] &&
        std::find(granted.begin(), granted.end(), i) == granted.end())
      others.push_back(i);
  const Row& deviation = scores.deviation[static_cast<size_t>(owner)];
  std::sort(others.begin(), others.end(), [&](int64_t a, int64_t b) {
    const double x = deviation[static_cast<size_t>(a)], y = deviation[static_cast<size_t>(b)];
    return x != y ? x > y : a > b;
  });
  for (int64_t x = 0; x < std::min<int64_t>(spread, static_cast<int64_t>(others.size())); ++x)
    append(granted, others[static_cast<size_t>(x)]);
  return granted;
}

/// Section 10 order by (score, raw): higher score, then higher raw (tie=raw), then more recent.
struct Better {
  const Row& score;
  const Row& raw;
  bool by_raw;
  bool operator()(int64_t a, int64_t b) const {
    const auto x = static_cast<size_t>(a), y = static_cast<size_t>(b);
    if (score[x] != score[y]) return score[x] > score[y];
    if (by_raw && raw[x] != raw[y]) return raw[x] > raw[y];
    return a > b;
  }
};

std::vector<int64_t> candidates_of(const Scores& scores, Range range) {
  std::vector<int64_t> all;
  for (int64_t i = range.begin; i < range.end; ++i)
    if (scores.candidate[static_cast<size_t>(i)]) all.push_back(i);
  return all;
}

/// stage1=mass: entries that hold most of the head's mean attention.
std::vector<int64_t> forced_by_mass(const Stage1Case& at) {
  const auto& [c, scores, owner, range, guarded, whole, closest] = at;
  const Row& mass = scores.mean_attention[static_cast<size_t>(owner)];
  std::vector<int64_t> order = candidates_of(scores, {0, c.n()});
  std::sort(order.begin(), order.end(), Better{mass, mass, false});
  double total = 0;
  for (const int64_t i : order) total += mass[static_cast<size_t>(i)];
  const double theta = c.settings.real("stage1_mass") - (c.settings.is("stage1_bias", "shifted")
                                                             ? scores.shifted_bias
                                                             : scores.window_bias);
  const int64_t m = c.window();
  const int64_t cap = std::max<int64_t>(0, (Rational(c.n() - m) * c.ratio() - Rational(m)).floor());
  const int64_t most = std::min(cap, c.entries() - static_cast<int64_t>(guarded.size()));
  std::vector<int64_t> forced;
  double sum = 0;
  for (const int64_t i : order) {
    sum += mass[static_cast<size_t>(i)] / total;
    if (!(sum < theta) || static_cast<int64_t>(forced.size()) >= most) break;
    forced.push_back(i);
  }
  return forced;
}

/// stage1=ratio: the best by the score before `weight`, protected entries first.
std::vector<int64_t> forced_by_ratio(const Stage1Case& at) {
  const auto& [c, scores, owner, range, guarded, whole, closest] = at;
  const Rational phi = Rational::parse(c.settings.text("stage1_ratio"));
  int64_t places = (phi * Rational(whole)).floor();
  if (c.settings.is("rounding", "kvpress") && !c.is_count() &&
      !c.settings.is("allocate_score", "unweighted")) {
    const double r = (Rational(1) - c.ratio()).value();
    places = phi == 0
                 ? 0
                 : std::max<int64_t>(1, static_cast<int64_t>(
                                            (1.0 - r) * static_cast<double>(c.n()) * phi.value()));
  }
  std::vector<int64_t> order = candidates_of(scores, range);
  std::sort(order.begin(), order.end(),
            Better{scores.unweighted[static_cast<size_t>(owner)],
                   scores.unweighted_raw[static_cast<size_t>(owner)], c.settings.is("tie", "raw")});
  std::vector<int64_t> all = guarded;
  for (const int64_t i : order) append(all, i);
  std::vector<int64_t> forced;
  for (int64_t x = 0; x < std::min<int64_t>(places, static_cast<int64_t>(all.size())); ++x)
    if (x >= static_cast<int64_t>(guarded.size())) forced.push_back(all[static_cast<size_t>(x)]);
  return forced;
}

/// stage1=token-class: what places are left for go to the classes in turn.
std::vector<int64_t> forced_by_class(const Stage1Case& at) {
  const auto& [c, scores, owner, range, guarded, whole, closest] = at;
  std::vector<int64_t> forced;
  for (const auto& set : class_sets(c, scores, owner, range, closest))
    for (const int64_t i : set)
      if (std::find(guarded.begin(), guarded.end(), i) == guarded.end()) append(forced, i);
  const int64_t places = std::max<int64_t>(0, whole - static_cast<int64_t>(guarded.size()));
  if (static_cast<int64_t>(forced.size()) > places) forced.resize(static_cast<size_t>(places));
  return forced;
}

/// Shares of the segments of one head that has b entries (section 8).
std::vector<int64_t> fair_shares(const PolicyCase& c, int64_t b) {
  const std::vector<Range> segments = c.segments();
  std::vector<int64_t> sizes, shares;
  for (const Range& range : segments) sizes.push_back(range.size());
  int64_t sinks = 0;
  if (c.settings.is("indicator", "position")) {
    sinks = std::min({c.settings.count("sinks"), sizes[0], b});
    sizes[0] -= sinks;
  }
  const int64_t n = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  int64_t left = b - sinks;
  for (size_t k = 0; k < sizes.size(); ++k) {
    const Rational quota = n > 0 ? Rational((b - sinks) * sizes[k]) / Rational(n) : Rational(0);
    int64_t share = left;
    if (k + 1 < sizes.size())
      share = c.settings.is("indicator", "position") ? std::min(quota.half_up(), left)
                                                     : quota.floor();
    shares.push_back(share);
    left -= share;
  }
  if (!c.settings.is("indicator", "position") && c.settings.is("fair_rounding", "remainder"))
    shares = apportion(b, Row(sizes.begin(), sizes.end()), c.n());  // a quota never exceeds n_k
  for (size_t k = sizes.size(); k-- > 0;) {
    const int64_t excess = std::max<int64_t>(0, shares[k] - sizes[k]);
    if (excess == 0) continue;
    shares[k] -= excess;
    if (k > 0) shares[k - 1] += excess;
    for (size_t next = 1; k == 0 && next < sizes.size(); ++next) {
      // Nothing is before the first: the excess goes on to the next ones.
      const int64_t room = sizes[next] - shares[next];
      shares[next] += std::min(room, next == 1 ? excess : int64_t{0});
    }
  }
  shares[0] += sinks;
  return shares;
}

/// debias: the first of two segments between its fair share and what it has unconstrained.
std::vector<int64_t> debiased(const PolicyCase& c, int64_t b, const Head* unconstrained) {
  std::vector<int64_t> shares = fair_shares(c, b);
  if (!unconstrained) return shares;
  const std::vector<Range> segments = c.segments();
  int64_t before = 0;
  for (const int64_t i : unconstrained->kept) before += segments[0].contains(i) ? 1 : 0;
  const Rational lambda = Rational::parse(c.settings.text("debias_lambda"));
  const int64_t first =
      (lambda * Rational(shares[0]) + (Rational(1) - lambda) * Rational(before)).half_up();
  shares[0] = std::clamp(first, std::max<int64_t>(0, b - segments[1].size()),
                         std::min(b, segments[0].size()));
  shares[1] = b - shares[0];
  return shares;
}

const References<Stage1Reference> first_stages{
    {"none", {}},
    {"ratio", {forced_by_ratio}},
    {"mass", {.forced = forced_by_mass, .before_allocation = true}},
    {"token-class", {forced_by_class}},
};

const References<ConstrainReference> constraints{
    {"none", {}},
    {"fair", {[](const PolicyCase& c, int64_t b, const Head*) { return fair_shares(c, b); }}},
    {"debias", {debiased}},
};

}  // namespace

std::vector<std::vector<int64_t>> class_sets(const PolicyCase& c, const Scores& scores, int owner,
                                             Range range, double& closest) {
  std::vector<std::vector<int64_t>> sets(4);
  for (int64_t i = range.begin; i < range.end; ++i) {  // the texts that tests make up
    if (c.texts[static_cast<size_t>(i)] == "<s>") sets[0].push_back(i);
    if (c.texts[static_cast<size_t>(i)] == ",") sets[1].push_back(i);
  }
  const Row& score = scores.final_score[static_cast<size_t>(owner)];
  std::vector<int64_t> order = candidates_of(scores, range);
  std::sort(order.begin(), order.end(), Better{score, score, false});
  const auto share_of = [&](const char* key) {
    return (Rational::parse(c.settings.text(key)) * Rational(range.end - range.begin)).floor();
  };
  const auto frequent = static_cast<size_t>(
      std::min(share_of("class_frequent"), static_cast<int64_t>(order.size())));
  sets[2].assign(order.begin(), order.begin() + static_cast<int64_t>(frequent));
  std::vector<Place> ranked;
  for (const int64_t i : order) ranked.push_back({.score = score[static_cast<size_t>(i)]});
  closest = std::min(closest, closest_at_cut(c, ranked, frequent));
  for (int64_t x = 1; x <= share_of("class_local"); ++x) sets[3].push_back(range.end - x);
  return sets;
}

std::vector<Sure> sure_entries(const PolicyCase& c, const Scores& scores, int owner,
                               const std::vector<int64_t>& shares, int64_t b, double& closest) {
  std::vector<Sure> all;
  const std::vector<Range> segments = c.segments();
  const std::vector<Part> parts = parts_of(c);
  const auto& kind = References<Stage1Reference>::of(c.settings);
  const auto forced_in = [&](Range range, const std::vector<int64_t>& guarded, int64_t whole) {
    return kind.forced ? kind.forced({c, scores, owner, range, guarded, whole, closest})
                       : std::vector<int64_t>{};
  };
  if (c.rescored()) {
    for (size_t k = 0; k < parts.size(); ++k) {
      Sure sure;
      sure.guarded = protection(c, scores, owner, parts[k].range, k == 0, k + 1 == parts.size(),
                                parts[k].window, shares[k]);
      if (!kind.before_allocation) sure.forced = forced_in(parts[k].range, sure.guarded, shares[k]);
      all.push_back(std::move(sure));
    }
    return all;
  }
  const std::vector<int64_t> guarded = protection(c, scores, owner, {0, c.n()}, true, true,
                                                  c.window(), c.entries());
  const std::vector<int64_t> forced = forced_in({0, c.n()}, guarded, b);
  for (const Range& range : segments) {
    Sure sure;
    for (const int64_t i : guarded)
      if (range.contains(i)) sure.guarded.push_back(i);
    for (const int64_t i : forced)
      if (range.contains(i) && std::find(guarded.begin(), guarded.end(), i) == guarded.end())
        sure.forced.push_back(i);
    all.push_back(std::move(sure));
  }
  return all;
}

std::vector<int64_t> shares_of(const PolicyCase& c, int64_t b, const Head* unconstrained) {
  const auto& kind = References<ConstrainReference>::of(c.settings);
  return kind.shares ? kind.shares(c, b, unconstrained) : std::vector<int64_t>{b};
}

Head select_head(const PolicyCase& c, const Scores& scores, int owner, int64_t b,
                 const std::vector<int64_t>& among, const Head* unconstrained, double& closest) {
  Head head;
  b = std::clamp(b, whitelisted(c), c.n());
  const std::vector<int64_t> shares = shares_of(c, b, unconstrained);
  const std::vector<Sure> sure = sure_entries(c, scores, owner, shares, b, closest);
  const std::vector<Range> segments = c.segments();
  const Row& score = scores.final_score[static_cast<size_t>(owner)];
  const Row& raw = scores.final_raw[static_cast<size_t>(owner)];
  for (size_t k = 0; k < segments.size(); ++k) {
    int64_t left = shares[k];
    Sure own = sure[k];
    if (c.settings.is("protected_rank", "layer-max") && c.settings.is("allocate", "joint")) {
      std::sort(own.guarded.rbegin(), own.guarded.rend());
      std::sort(own.forced.rbegin(), own.forced.rend());
    }
    const auto has = [](const std::vector<int64_t>& list, int64_t i) {
      return std::find(list.begin(), list.end(), i) != list.end();
    };
    bool full = false;
    const auto enter = [&](int64_t i) {  // with its block; the first that is too large is the end
      if (has(head.kept, i)) return true;
      const std::vector<int64_t> block = block_of(c, i);
      full = full || static_cast<int64_t>(block.size()) > left;
      if (full) return false;
      left -= static_cast<int64_t>(block.size());
      head.kept.insert(head.kept.end(), block.begin(), block.end());
      return true;
    };
    for (const int64_t i : own.guarded)
      if (enter(i)) head.guarded.push_back(i);
    for (const int64_t i : own.forced) enter(i);
    std::vector<int64_t> others;
    for (const int64_t i : candidates_of(scores, segments[k]))
      if (!has(own.guarded, i) && !has(own.forced, i) && !has(head.kept, i) && has(among, i))
        others.push_back(i);
    std::sort(others.begin(), others.end(), Better{score, raw, c.settings.is("tie", "raw")});
    size_t take = 0;
    while (take < others.size() && enter(others[take])) ++take;
    std::vector<Place> ranked;
    for (const int64_t i : others)
      ranked.push_back({score[static_cast<size_t>(i)], raw[static_cast<size_t>(i)]});
    closest = std::min(closest, closest_at_cut(c, ranked, take));
    // A smaller block may fit where the next one does not: it must not be next by rounding alone.
    if (c.settings.count("block") > 1)
      closest = std::min(closest, closest_at_cut(c, ranked, take + 1));
    if (take == 0) continue;
    for (const Place& other : ranked) head.tied += other.score == ranked[take - 1].score ? 1 : 0;
  }
  std::sort(head.kept.begin(), head.kept.end());
  std::sort(head.guarded.begin(), head.guarded.end());
  return head;
}

double closest_at_cut(const PolicyCase& c, const std::vector<Place>& ranked, size_t taken) {
  if (taken == 0 || taken >= ranked.size()) return 1;
  const double unit = References<IndicatorReference>::of(c.settings).unit;
  const Place last = ranked[taken - 1], next = ranked[taken];
  if (last.score != next.score) return distance(last.score, next.score, unit);
  double closest = distance(last.raw, next.raw, unit);
  for (const Place& other : ranked) {
    closest = std::min(closest, distance(other.score, next.score, unit));
    if (other.score == next.score && last.raw == next.raw)
      closest = std::min(closest, distance(other.raw, next.raw, unit));
  }
  return closest;
}

bool equal_but_for_rounding(const std::vector<Entry>& open, const Entry& last) {
  std::map<std::pair<size_t, size_t>, std::multiset<double>> scores;
  for (const Entry& entry : open) scores[{entry.layer, entry.owner}].insert(entry.score);
  return last.score != 0 && std::ranges::any_of(open, [&](const Entry& entry) {
           return entry.score == last.score &&
                  scores.at({entry.layer, entry.owner}) != scores.at({last.layer, last.owner});
         });
}

double distance(double a, double b, double unit) {
  if (a == b) return 1;  // decided by other keys, which are exact
  if (std::isinf(a) || std::isinf(b)) return 1;
  return std::fabs(a - b) / std::max({std::fabs(a), std::fabs(b), unit, 1e-30});
}

}  // namespace kvsim::reference
