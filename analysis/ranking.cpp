#include "analysis/ranking.hpp"

#include <fmt/format.h>

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

/// A number to judge policies by: a variable per step, what it is over the steps, and its name.
struct Judged {
  const char* steps = nullptr;
  const char* summary = nullptr;
  bool squares = false;  ///< the summary is a root mean square
  const char* name = nullptr;
};
constexpr Judged kJudged[] = {
    {"kl_divergence", "kl_divergence_answer", false, "loss (KL divergence of the answer, nats)"},
    {"kl_divergence", "kl_divergence_mean", false, "loss (KL divergence, nats)"},
    {"stream_error", "stream_error_rms", true, "stream error"}};

Judged judged(const Dataset& results) {
  for (const Judged& one : kJudged)
    if (results.has(one.steps) && results.has(one.summary)) return one;
  return {};
}

double summary_of(const Dataset& results, int64_t policy, int64_t budget) {
  return results.row(judged(results).summary, {policy, budget})[0];
}

/// The first step that predicts the answer, where the loss is of the answer alone.
int64_t first_judged(const Dataset& results, const Judged& by) {
  if (std::string_view(by.summary) != "kl_divergence_answer") return 0;
  const auto answer = results.attribute_or<int64_t>("answer_begin", 0);
  const auto& steps = results.values<int64_t>("step");
  return std::ranges::find_if(steps, [&](int64_t step) { return step >= answer - 1; }) -
         steps.begin();
}

/// Numbers whose mean over the steps the policies are judged by.
std::vector<double> series_of(const Dataset& results, int64_t policy, int64_t budget) {
  const Judged by = judged(results);
  const auto row = results.row(by.steps, {policy, budget}).subspan(first_judged(results, by));
  std::vector<double> series(row.begin(), row.end());
  if (by.squares)
    for (double& value : series) value *= value;
  return series;
}

bool off_budget(Mark mark) { return mark == Mark::more || mark == Mark::less; }

double log_of(double error) { return std::log(std::max(kLeastNumber, error)); }

bool always_apart(Unranked why) {
  return why == Unranked::hindsight || why == Unranked::nothing_lost ||
         why == Unranked::scores_all_equal;
}

/// Entries that a policy holds at its own budgets, over what one budget gives.
std::vector<Point> points_of(const Dataset& results, int64_t policy, int64_t budget) {
  std::vector<Point> found;
  const double given = results.row("budget_share", {policy, budget})[0];
  for (int64_t b = 0; b < results.size("budget"); ++b)
    found.push_back(
        {results.row("held_share", {policy, b})[0] / given, series_of(results, policy, b)});
  return found;
}

Standing rank_at(const Dataset& results, int64_t budget) {
  Contest contest;
  contest.scale = Scale::log;
  const bool shares = results.has("held_share") && results.has("budget_share");
  for (int64_t p = 0; p < results.size("policy"); ++p) {
    contest.series.push_back(series_of(results, p, budget));
    contest.unranked.push_back(unranked(results, p, budget));
    contest.held.push_back(held_of_budget(results, p, budget));
    contest.points.push_back(shares && off_budget(contest.unranked.back())
                                 ? points_of(results, p, budget)
                                 : std::vector<Point>());
  }
  return standing(contest);
}

/// The best policy at a budget; of several with the same error the one with the shortest name, as
/// settings without effect make names longer. -1: none.
int64_t plainest_best(const Dataset& results, const Verdict& verdict, size_t budget) {
  const auto& names = results.texts("policy");
  int64_t found = -1;
  for (const int64_t p : verdict.order) {
    if (verdict.marks[p][budget] != Mark::best) continue;
    if (found < 0 || names[p].size() < names[found].size()) found = p;
  }
  return found;
}

/// "a at 0.1 and 0.2; b at 0.5".
std::string uses(const Dataset& results, const Verdict& verdict) {
  const auto& budgets = results.texts("budget_label");
  std::string text;
  int64_t before = -1;
  for (size_t b = 0; b < budgets.size(); ++b) {
    const int64_t p = plainest_best(results, verdict, b);
    if (p < 0) continue;
    if (p == before)
      text += ", " + budgets[b];
    else
      text += fmt::format("{}{} at {}", text.empty() ? "" : "; ", results.texts("policy")[p],
                          budgets[b]);
    before = p;
  }
  return text;
}

/// Next step that would tell more, at the smallest budget.
std::string what_next(const Dataset& results, const Verdict& verdict) {
  const auto& ratios = results.values<double>("budget");
  const auto b = static_cast<size_t>(std::ranges::min_element(ratios) - ratios.begin());
  const int64_t best = plainest_best(results, verdict, b);
  if (best < 0) return "";
  const std::string budget = results.texts("budget_label")[b];
  int64_t open = 1;
  for (const auto& marks : verdict.marks) open += marks[b] == Mark::equal;
  if (open > 1)
    return fmt::format("{} policies cannot be told apart at {}: replay more traces", open, budget);
  double hindsight = std::numeric_limits<double>::infinity();
  for (const int64_t p : verdict.order)
    if (unranked(results, p, static_cast<int64_t>(b)) == Unranked::hindsight)
      hindsight = std::min(hindsight, summary_of(results, p, static_cast<int64_t>(b)));
  const double share = hindsight / summary_of(results, best, static_cast<int64_t>(b));
  const std::string why = share < 1
                              ? fmt::format(", as hindsight has only {:.2f} of its error at {}",
                                            share, budget)
                              : "";
  return fmt::format("change one setting of {} (kvsim sweep){}", results.texts("policy")[best],
                     why);
}

/// "a 1.25 at 0.1, 1.1 at 0.2; b at 0.1" for the cells that `said` has a text for.
template <class Said>
std::string by_policy(const Dataset& results, const Verdict& verdict, const Said& said) {
  std::string text;
  for (const int64_t p : verdict.order) {
    std::string own;
    for (int64_t b = 0; b < results.size("budget"); ++b)
      if (const std::optional<std::string> cell = said(p, b))
        own += (own.empty() ? " " : ", ") + *cell + (cell->empty() && !own.empty() ? "" : "at ") +
               results.texts("budget_label")[b];
    if (!own.empty()) text += (text.empty() ? "" : "; ") + results.texts("policy")[p] + own;
  }
  return text;
}

std::string compared(const AtEqualBytes& one) {
  const bool open = one.ratio.interval.low <= 1 && 1 <= one.ratio.interval.high;
  return fmt::format("{:.3g} ({}) ", one.value,
                     open                  ? "not told apart from the least"
                     : one.ratio.value < 1 ? "less than the least"
                                           : "more than the least");
}

/// Policies that do not hold what the budgets give, and what that says.
std::string held_text(const Dataset& results, const Verdict& verdict) {
  using Cell = std::optional<std::string>;
  const auto off = [&](int64_t p, int64_t b) { return off_budget(verdict.marks[p][b]); };
  const std::string held = by_policy(results, verdict, [&](int64_t p, int64_t b) -> Cell {
    if (!off(p, b)) return {};
    return fmt::format("{:.3g} times ", held_of_budget(results, p, b));
  });
  std::string text;
  if (!held.empty())
    text += "> holds over a twentieth more than the budget gives (entries or bytes), < less; not "
            "ranked there:\n  " +
            held + "\n";
  std::string below;
  for (size_t b = 0; b < verdict.held.size(); ++b)
    if (verdict.held[b] != 1)
      below += fmt::format("{}{:.3g} times at {}", below.empty() ? "" : ", ", verdict.held[b],
                           results.texts("budget_label")[b]);
  if (!below.empty())
    text += "no policy holds what the budget gives; ranked are those that hold less, alike: " +
            below + "\n";
  const std::string equal = by_policy(results, verdict, [&](int64_t p, int64_t b) -> Cell {
    const AtEqualBytes* one = verdict.equal_bytes(p, b);
    return one ? compared(*one) : Cell();
  });
  if (!equal.empty()) text += "at equal bytes, between its own budgets: " + equal + "\n";
  const std::string nowhere = by_policy(results, verdict, [&](int64_t p, int64_t b) -> Cell {
    return off(p, b) && !verdict.equal_bytes(p, b) ? Cell("") : Cell();
  });
  if (!nowhere.empty())
    text += "not compared at equal bytes, as its own budgets hold only more or only less: " +
            nowhere + "\n";
  return text;
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

const char* judged_by(const Dataset& results) { return judged(results).summary; }

const AtEqualBytes* Verdict::equal_bytes(int64_t policy, int64_t budget) const {
  for (const AtEqualBytes& one : at_equal_bytes)
    if (one.policy == policy && one.budget == budget) return &one;
  return nullptr;
}

Verdict verdict(const Dataset& results) {
  Verdict found;
  if (judged(results).steps == nullptr) return found;
  const auto policies = static_cast<size_t>(results.size("policy"));
  const auto budgets = static_cast<size_t>(results.size("budget"));
  std::vector<Standing> rankings(budgets);
  parallel_for(std::ssize(rankings), [&](int64_t b) { rankings[b] = rank_at(results, b); });
  for (size_t b = 0; b < budgets; ++b) {
    found.held.push_back(rankings[b].held);
    for (size_t p = 0; p < policies; ++p)
      if (const Bounded& one = rankings[b].equal_bytes[p]; !std::isnan(one.value))
        found.at_equal_bytes.push_back({static_cast<int64_t>(p), static_cast<int64_t>(b),
                                        judged(results).squares ? std::sqrt(one.value) : one.value,
                                        rankings[b].equal_bytes_differences[p]});
  }
  std::vector<std::pair<int, double>> place;  // ranked, ranked nowhere, apart; then the error
  for (size_t p = 0; p < policies; ++p) {
    const auto policy = static_cast<int64_t>(p);
    std::vector<double> ratios, own;
    found.marks.emplace_back();
    for (size_t b = 0; b < budgets; ++b) {
      const Mark mark = rankings[b].marks[p];
      found.marks.back().push_back(mark);
      const double error = summary_of(results, policy, static_cast<int64_t>(b));
      own.push_back(std::isnan(error) ? error : log_of(error));
      if (rankings[b].best < 0) continue;
      const double least = log_of(summary_of(results, rankings[b].best, static_cast<int64_t>(b)));
      if (!off_budget(mark)) ratios.push_back(own.back() - least);
      if (const AtEqualBytes* one = found.equal_bytes(policy, static_cast<int64_t>(b)))
        ratios.push_back(log_of(one->value) - least);
    }
    found.apart.push_back(budgets > 0 && always_apart(unranked(results, policy, 0)));
    double value = mean(ratios);
    const bool nowhere = std::isnan(value);
    if (nowhere) value = mean(own);
    if (std::isnan(value)) value = std::numeric_limits<double>::infinity();
    place.emplace_back(found.apart[p] ? 2 : nowhere ? 1 : 0, value);
    found.order.push_back(policy);
  }
  std::ranges::stable_sort(found.order, {}, [&](int64_t p) { return place[p]; });
  return found;
}

std::string verdict_text(const Dataset& results, const Verdict& found, const char* marks) {
  if (found.order.empty()) return "";
  std::string apart;
  for (size_t p = 0; p < found.apart.size(); ++p)
    if (found.apart[p]) apart += (apart.empty() ? "" : ", ") + results.texts("policy")[p];
  std::string text = fmt::format("sorted by {}, geometric mean over budgets; lower is better\n",
                                 judged(results).name);
  text += fmt::format("{} (95 % interval over blocks of steps)\n", marks);
  text += held_text(results, found);
  if (!apart.empty())
    text += "last, not ranked (hindsight, nothing lost, or scores all equal): " + apart + "\n";
  return text;
}

std::string advice(const Dataset& results, const Verdict& verdict) {
  if (verdict.order.empty()) return "";
  const auto ranked = std::ranges::count_if(verdict.order, [&](int64_t p) {
    return !verdict.apart[p] &&
           !std::ranges::all_of(verdict.marks[p], [](Mark mark) { return off_budget(mark); });
  });
  const std::string best = uses(results, verdict);
  if (ranked < 2 || best.empty()) return "";
  const std::string tried = what_next(results, verdict);
  return "on this text use " + best + (tried.empty() ? "" : "; next: " + tried) + "\n";
}

}  // namespace kvsim
