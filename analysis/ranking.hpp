#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

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

/// What a policy holds at one of its own budgets, and its numbers there.
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
  /// What the ranked hold over what the budget gives: 1, unless none holds that.
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

}  // namespace kvsim
