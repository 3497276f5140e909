#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/core/decimal.hpp"
#include "sim/core/position_drift.hpp"

namespace kvsim {

/// How far the most important entries move while the observing queries pass (metrics.md 5.4;
/// ReST-KV Eq. 10): mean position of each row's K best candidates, one K per budget.
class Drift {
 public:
  /// `best`: the values of K.
  Drift(std::vector<int64_t> best, int query_heads, int64_t rows);
  /// Row `row` of a head: one number per candidate, larger is better, more recent first on ties.
  /// Different heads may be added side by side.
  void add(int query_head, int64_t row, std::span<const double> values);

  /// NaN if K = 0.
  double mean_position(size_t budget, int query_head, int64_t row) const;
  /// Front half minus rear half of the rows; 0 if K = 0 or there is one row.
  PositionDrift drift(size_t budget, int query_head) const;

 private:
  std::vector<int64_t> best_;
  std::vector<Table<int64_t>> count_;  ///< [budget] each [Hq][rows] entries that are followed
  std::vector<Table<int64_t>> sum_;    ///< the same, the sum of their positions
};

/// Width and shift of ReST-KV's adaptive window for a drift and beta in tokens, with the default
/// least width of 5 (policies.md 5.5).
int64_t adaptive_width(const PositionDrift& drift, const Decimal& beta);
int64_t adaptive_shift(const PositionDrift& drift, const Decimal& beta);

}  // namespace kvsim
