#pragma once
#include <cstdint>
#include <vector>

#include "sim/core/layer_trace.hpp"

/// A layer's measures by definition (metrics.md 1 and 2), in float64 and plain loops over one
/// element at a time, of sets that are only dropped from. It shares no code with the replay: it is
/// what `kvsim replay --check` judges a run by.
namespace kvsim {

/// Measures of one set of kept entries, per step; NaN where they are not defined.
struct PlainMeasures {
  std::vector<double> retained_attention;
  std::vector<double> retained_importance;
  std::vector<double> output_error;
};

/// Which entries of the prompt a query head still has: [Hq][n].
using PlainSets = std::vector<std::vector<bool>>;

class PlainLayer {
 public:
  /// `rows`: stored queries that are looked at, by their index; all at later positions. `squares`:
  /// importance by the 2-norm instead of the 1-norm.
  PlainLayer(const LayerTrace& layer, std::vector<int64_t> rows, bool squares);

  PlainMeasures measure(const PlainSets& kept) const;

 private:
  struct Head {
    std::vector<std::vector<double>> attention;  ///< [row][position], of the full cache
    std::vector<double> weight;                  ///< [n] norm of v_i W
  };
  void prepare(int head);
  std::vector<double> attention(int head, int64_t row) const;
  std::vector<double> value(int head, int64_t entry) const;
  std::vector<double> output(int head, const std::vector<double>& weights) const;
  void add_projected(int head, const std::vector<double>& x, std::vector<double>& sum) const;
  PlainMeasures of_row(const PlainSets& kept, size_t r) const;

  const LayerTrace& layer_;
  std::vector<int64_t> rows_;
  bool squares_;
  std::vector<Head> heads_;
};

}  // namespace kvsim
