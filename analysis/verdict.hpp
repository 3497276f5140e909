#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/dataset.hpp"
#include "analysis/ranking.hpp"

namespace kvsim {

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

/// What to use at which budget, and what to try next; empty when nothing is ranked.
std::string advice(const Dataset& results, const Verdict& verdict);

}  // namespace kvsim
