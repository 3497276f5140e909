#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/dataset.hpp"

namespace kvsim {

/// How the policies of one results file compare by stream error (metrics.md 6).
struct Verdict {
  enum class Mark : uint8_t { none, best, equal };

  /// Policies by their geometric mean over budgets, least first; then those that stand apart.
  std::vector<int64_t> order;
  /// [policy]: looks ahead, or loses nothing at any budget. Ranks no one and is ranked by no one.
  std::vector<bool> apart;
  /// [policy][budget]: the least error at its budget; or one whose difference from it in mean
  /// square error has a 95 % interval, by bootstrap over moving blocks of this trace's steps, that
  /// holds 0.
  std::vector<std::vector<Mark>> marks;
};

/// `looks_ahead` [policy]; empty `order` when the file has no stream errors.
Verdict verdict(const Dataset& results, const std::vector<bool>& looks_ahead);

/// What to use at which budget, and what to try next; empty when nothing is ranked.
std::string advice(const Dataset& results, const Verdict& verdict);

}  // namespace kvsim
