#pragma once
#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "io/trace_reader.hpp"

/// A layer's measures by definition (metrics.md 1 and 2), in float64 and plain loops over one
/// element at a time, of sets that are only dropped from. It shares no code with the replay: it is
/// what `kvsim replay --check` judges a run by.
namespace kvsim {

/// Measures of one set of kept entries at one step; NaN where they are not defined.
struct PlainMeasures {
  double retained_attention = 0;
  double retained_importance = 0;
  double output_error = 0;
};

/// Which entries of the prompt a query head still has: [Hq][n].
using PlainSets = std::vector<std::vector<bool>>;

class PlainLayer {
 public:
  /// `rows`: stored queries that are looked at, by their index; all at later positions. `squares`:
  /// importance by the 2-norm instead of the 1-norm.
  PlainLayer(const LayerTrace& layer, std::vector<int64_t> rows, bool squares);

  /// [row]
  std::vector<PlainMeasures> measure(const PlainSets& kept) const;

 private:
  struct Head {
    std::vector<std::vector<double>> attention;  ///< [row][position], of the full cache
    std::vector<double> weight;                  ///< [n] norm of v_i W
  };
  void prepare(int head);
  PlainMeasures of_row(const PlainSets& kept, size_t r) const;

  const LayerTrace& layer_;
  std::vector<int64_t> rows_;
  bool squares_;
  std::vector<Head> heads_;
};

/// The largest difference of one variable from what it was compared with, relative where values are
/// above 1.
struct CheckedVariable {
  std::string name;
  double difference = 0;
  int64_t values = 0;  ///< that were compared
};

/// Findings of `kvsim replay --check` in one layer.
struct LayerCheckResult {
  std::vector<CheckedVariable> plain;  ///< against float64 (PlainLayer)
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
