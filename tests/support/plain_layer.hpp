#pragma once
#include <vector>

#include "sim/core/layer_trace.hpp"

/// A layer's measures by definition (metrics.md 1 and 2), in float64 and plain loops over one
/// element at a time, of sets that are only dropped from. It shares no code with the replay.
namespace kvsim::test {

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

}  // namespace kvsim::test
