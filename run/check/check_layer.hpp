#pragma once
#include <string>
#include <vector>

#include "analysis/dataset.hpp"
#include "analysis/study_options.hpp"
#include "io/trace_reader.hpp"
#include "sim/backend/backend.hpp"

namespace kvsim {

/// The largest difference of one variable from what it was compared with, relative where values are
/// above 1.
struct CheckedVariable {
  std::string name;
  double difference = 0;
  int64_t values = 0;  ///< that were compared
};

/// Findings of `kvsim replay --check` in one layer.
struct LayerCheckResult {
  int layer = 0;
  std::vector<CheckedVariable> plain;  ///< against float64 (run/check/plain_layer.hpp)
  std::vector<std::string> left_out;   ///< records that do more than drop: no plain form here
  std::vector<CheckedVariable> other;  ///< against another backend or instruction set
  int64_t moved = 0;                   ///< kept entries that are not the same there
  int64_t kept = 0;                    ///< of so many
};

/// Differences above these are told as faults. Float32 logits of size 20 carry 2e-6, and an error
/// of outputs is divided by what is left of them.
inline constexpr double kPlainLimit = 1e-4;
inline constexpr double kOtherLimit = 1e-4;

/// Replays the run again and looks at one layer: with `backend`, whose kept sets plain code in
/// float64 then measures at no more than 16 steps, and with `other`. `results`: of the run; what
/// the repetition gives must equal it.
LayerCheckResult check_run(const TraceReader& reader, const StudyOptions& options,
                           const Dataset& results, int layer, Backend& backend, Backend& other);

}  // namespace kvsim
