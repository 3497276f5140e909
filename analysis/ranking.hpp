#pragma once
#include "analysis/dataset.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {

/// Why a policy is not ranked with the others (metrics.md 6); of the variable `unranked`, whose
/// flags these are. The first three hold at every budget.
enum class Unranked : uint8_t {
  ranked,
  hindsight,
  nothing_lost,
  scores_all_equal,
  holds_more,
  holds_less
};

/// How far what is held may lie from what the budget gives, as a share of it.
inline constexpr double kHeldAlike = 0.05;

/// `held`: over what the budget gives.
Unranked unranked_by(double held);

/// Entries that a policy holds at one of its own budgets, and its numbers there.
struct Point {
  double held = 0;  ///< over what the budget of the contest gives; NaN: unknown
  std::vector<double> series;
};

/// A policy's numbers where it holds `share`: on a line between the nearest two of its own points,
/// in logarithms of what is held and, with Scale::log, of the numbers (metrics.md 6). Empty where
/// all its points hold more, or all less.
std::vector<double> at_share(const std::vector<Point>& points, double share, Scale scale);

/// Policies at one budget by one measure, each with its numbers over the same steps or traces.
struct Contest {
  std::vector<std::vector<double>> series;  ///< [policy][unit]; NaN is undefined
  std::vector<Unranked> unranked;           ///< [policy]
  std::vector<double> held;                 ///< [policy], over what the budget gives; NaN: unknown
  /// [policy]: its own budgets, for the comparison at equal bytes; may be empty
  std::vector<std::vector<Point>> points;
  Units units = Units::steps;
  Scale scale = Scale::plain;
  bool more_is_better = false;
};

enum class Mark : uint8_t { none, best, equal, more, less };

struct Standing {
  std::vector<Mark> marks;  ///< [policy]
  std::vector<Bounded> values;
  /// From the best: a ratio on logarithms, else a difference.
  std::vector<Bounded> differences;
  /// Of policies that are not ranked for what they hold, at the bytes that the ranked hold; NaN
  /// where their own budgets hold only more, or only less.
  std::vector<Bounded> equal_bytes;
  std::vector<Bounded> equal_bytes_differences;  ///< from the best
  int64_t best = -1;  ///< the first of those marked so; -1: none is ranked
  /// Entries that the ranked hold over what the budget gives: 1, unless none holds that.
  double held = 1;
};

/// Ranks those that hold what the budget gives within kHeldAlike. Where none does, the largest
/// group that holds less and alike is ranked; what holds more never is.
Standing standing(const Contest& contest);

/// Which of `values` are the best of those that are `ranked`: within 1e-7, as equal kept sets are
/// summed in another order.
std::vector<bool> best_of(std::span<const double> values, const std::vector<bool>& ranked,
                          bool more_is_better);

/// The difference of two series, where both are defined.
Bounded difference(std::span<const double> values, std::span<const double> others, Units units,
                   Scale scale);

/// Of a results file; Unranked::ranked and NaN where it does not say.
Unranked unranked(const Dataset& results, int64_t policy, int64_t budget);
double held_of_budget(const Dataset& results, int64_t policy, int64_t budget);

/// A policy that does not hold what a budget gives, at what it gives: between its own budgets
/// (at_share()).
struct AtEqualBytes {
  int64_t policy = 0;
  int64_t budget = 0;
  double value = 0;
  Bounded ratio;  ///< to the least error at this budget
};

/// How the policies of one results file compare: by stream error, or, of a closed loop, by what the
/// model lost (metrics.md 6).
struct Verdict {
  /// Policies by their error over the least at each budget, geometric mean; then those that are
  /// ranked at no budget, then those that stand apart.
  std::vector<int64_t> order;
  /// [policy]: sees what comes, loses nothing at any budget, or scores all entries alike. Ranks no
  /// one and is ranked by no one.
  std::vector<bool> apart;
  std::vector<std::vector<Mark>> marks;  ///< [policy][budget]
  std::vector<double> held;  ///< [budget]: what the ranked hold over what the budget gives
  std::vector<AtEqualBytes> at_equal_bytes;

  const AtEqualBytes* equal_bytes(int64_t policy, int64_t budget) const;  ///< null: nowhere
};

/// The summary that policies are judged by: of the loss where the file has one, else of the stream
/// error; null without either.
const char* judged_by(const Dataset& results);

/// Empty `order` when the file has neither stream errors nor losses.
Verdict verdict(const Dataset& results);

/// How the best, and what is not told apart from it, are marked on a terminal and in a paper.
inline constexpr const char* kTerminalMarks = "* least at its budget; ~ not told apart from it";
inline constexpr const char* kPaperMarks = "bold: least at its budget; †: not told apart from it";

/// How to read order and marks, one line each: what they are of, who is not ranked and why.
std::string verdict_text(const Dataset& results, const Verdict& verdict,
                         const char* marks = kTerminalMarks);

/// Advice: a policy for each budget, and what to try next; empty when nothing is ranked.
std::string advice(const Dataset& results, const Verdict& verdict);

}  // namespace kvsim
