#pragma once
#include <span>
#include <vector>

#include "sim/backend/cpu/replay_job.hpp"

namespace kvsim {

/// One row of the replay (a query head at a later step) in float64 with its own maximum, for kept
/// sets whose scores vanish next to the largest score of the row.
class ExactRow {
 public:
  ExactRow(const ReplayJob& job, int64_t head, int64_t step);

  struct Result {
    double log_mass = 0;         ///< log of the sum of exp(logit) over the kept prompt entries
    double importance = 0;       ///< sum of exp(logit) * importance over them / exp(log_mass)
    std::vector<double> output;  ///< [dv]
  };
  /// `kept` prompt entries and all later positions up to the step's.
  Result attend(std::span<const uint32_t> kept, bool output) const;

 private:
  const ReplayJob& job_;
  int64_t head_;
  std::vector<double> logits_;  ///< [prompt entries, later positions up to the step's]
};

}  // namespace kvsim
