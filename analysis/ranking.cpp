#include "analysis/ranking.hpp"

#include "analysis/statistics.hpp"

namespace kvsim {
namespace {

constexpr double kEqual = 1e-7;
constexpr double kSameBytes = 0.02;     // shares of bytes that differ by less are one
constexpr double kLeastNumber = 1e-12;  // of a logarithm: nothing is lost
constexpr Bounded kNothing = {kUndefined, {kUndefined, kUndefined}, kUndefined};

bool off_budget(Unranked why) { return why == Unranked::holds_more || why == Unranked::holds_less; }

bool alike(double held, double other) {
  return std::max(held, other) <= (1 + kHeldAlike) * std::min(held, other);
}

/// Of those that hold less than the budget gives, what the most of them hold; NaN: there are none.
/// Of groups as large the one that holds the most.
double most_common(const Contest& contest) {
  double found = kUndefined;
  int64_t most = 0;
  for (size_t p = 0; p < contest.held.size(); ++p) {
    if (contest.unranked[p] != Unranked::holds_less || !(contest.held[p] > 0)) continue;
    int64_t count = 0;
    for (size_t q = 0; q < contest.held.size(); ++q)
      count += contest.unranked[q] == Unranked::holds_less &&
               alike(contest.held[p], contest.held[q]);
    if (count < most || (count == most && contest.held[p] <= found)) continue;
    most = count;
    found = contest.held[p];
  }
  return found;
}

/// Policies that are ranked: at the budget, or alike below it.
std::vector<bool> ranked(const Contest& contest, Standing& ranking) {
  const size_t count = contest.series.size();
  std::vector<bool> found(count);
  bool some = false;
  const auto there = [&](size_t p) { return !std::isnan(ranking.values[p].value); };
  for (size_t p = 0; p < count; ++p) {
    found[p] = contest.unranked[p] == Unranked::ranked && there(p);
    some = some || found[p];
  }
  if (some) return found;
  const double held = most_common(contest);
  if (std::isnan(held)) return found;
  ranking.held = held;
  for (size_t p = 0; p < count; ++p)
    found[p] = contest.unranked[p] == Unranked::holds_less && there(p) &&
               alike(contest.held[p], held);
  return found;
}

}  // namespace

Unranked unranked_by(double held) {
  if (held > 1 + kHeldAlike) return Unranked::holds_more;
  return held < 1 - kHeldAlike ? Unranked::holds_less : Unranked::ranked;
}

std::vector<bool> best_of(std::span<const double> values, const std::vector<bool>& ranked,
                          bool more_is_better) {
  std::vector<double> competing;
  for (size_t p = 0; p < values.size(); ++p)
    if (ranked[p]) competing.push_back(values[p]);
  const double best = more_is_better ? maximum(competing) : minimum(competing);
  std::vector<bool> found;
  for (size_t p = 0; p < values.size(); ++p)
    found.push_back(ranked[p] && std::abs(values[p] - best) <= kEqual * std::abs(best));
  return found;
}

Bounded difference(std::span<const double> values, std::span<const double> others, Units units,
                   Scale scale) {
  std::vector<double> mine, theirs;
  for (size_t k = 0; k < std::min(values.size(), others.size()); ++k) {
    if (std::isnan(values[k]) || std::isnan(others[k])) continue;
    mine.push_back(values[k]);
    theirs.push_back(others[k]);
  }
  return paired(mine, theirs, units, scale);
}

std::vector<double> at_share(const std::vector<Point>& points, double share, Scale scale) {
  const Point *below = nullptr, *above = nullptr;
  for (const Point& point : points) {
    if (std::isnan(point.held) || defined(point.series).empty()) continue;
    if (point.held <= share * (1 + kSameBytes) && (!below || point.held > below->held))
      below = &point;
    if (point.held * (1 + kSameBytes) >= share && (!above || point.held < above->held))
      above = &point;
  }
  if (!below || !above) return {};
  const double width = std::log(above->held / below->held);
  const double along = width > 0 ? std::clamp(std::log(share / below->held) / width, 0.0, 1.0) : 0;
  const auto to = [&](double x) {
    return scale == Scale::log ? std::log(std::max(kLeastNumber, x)) : x;
  };
  std::vector<double> series;
  for (size_t k = 0; k < below->series.size(); ++k) {
    const double x = below->series[k], y = above->series[k];
    const double between = (1 - along) * to(x) + along * to(y);
    series.push_back(std::isnan(x + y)     ? kUndefined
                     : scale == Scale::log ? std::exp(between)
                                           : between);
  }
  return series;
}

Standing standing(const Contest& contest) {
  const size_t count = contest.series.size();
  Standing found;
  std::vector<double> values;
  for (const std::vector<double>& series : contest.series) {
    found.values.push_back(estimate(defined(series), contest.units, contest.scale));
    values.push_back(found.values.back().value);
  }
  const std::vector<bool> in = ranked(contest, found);
  const std::vector<bool> best = best_of(values, in, contest.more_is_better);
  const auto first = std::ranges::find(best, true);
  if (first != best.end()) found.best = first - best.begin();
  const double none = contest.scale == Scale::log ? 1 : 0;
  for (size_t p = 0; p < count; ++p) {
    const auto from_best = [&](const std::vector<double>& series) {
      return difference(series, contest.series[found.best], contest.units, contest.scale);
    };
    found.differences.push_back(found.best < 0 ? kNothing : from_best(contest.series[p]));
    found.equal_bytes.push_back(kNothing);
    found.equal_bytes_differences.push_back(kNothing);
    const Interval& ends = found.differences[p].interval;
    const bool open = ends.low <= none && none <= ends.high;
    found.marks.push_back(best[p] ? Mark::best : in[p] && open ? Mark::equal : Mark::none);
    if (in[p] || !off_budget(contest.unranked[p])) continue;
    found.marks[p] = contest.unranked[p] == Unranked::holds_more ? Mark::more : Mark::less;
    if (found.best < 0 || contest.points.empty()) continue;
    const std::vector<double> series = at_share(contest.points[p], found.held, contest.scale);
    found.equal_bytes[p] = estimate(defined(series), contest.units, contest.scale);
    if (!series.empty()) found.equal_bytes_differences[p] = from_best(series);
  }
  return found;
}

Unranked unranked(const Dataset& results, int64_t policy, int64_t budget) {
  if (!results.has("unranked")) return Unranked::ranked;
  const uint8_t code = results.row<uint8_t>("unranked", {policy, budget})[0];
  return code > static_cast<uint8_t>(Unranked::holds_less) ? Unranked::ranked
                                                           : static_cast<Unranked>(code);
}

double held_of_budget(const Dataset& results, int64_t policy, int64_t budget) {
  if (!results.has("held_of_budget")) return kUndefined;
  return results.row("held_of_budget", {policy, budget})[0];
}

}  // namespace kvsim
