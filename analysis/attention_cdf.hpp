#pragma once
#include <array>
#include <vector>

#include "sim/backend/backend.hpp"

namespace kvsim {

/// How concentrated attention is (metrics.md 5.1): the share of a query's attention that its
/// largest ceil(x * visible) entries hold. A sink's part is no entry's and not counted.
class AttentionCdf {
 public:
  static constexpr std::array<int64_t, 6> kPercents = {1, 2, 5, 10, 20, 50};  ///< 100 x

  AttentionCdf(int query_heads, int64_t steps);
  /// Rows of later steps; the block's columns must hold all that is visible.
  void add(const AttentionBlock& block, int64_t first_row);

  /// Over all heads and steps; `share` indexes kPercents.
  double mean_of(size_t share) const;
  double p05_of(size_t share) const;

 private:
  std::array<Table<double>, kPercents.size()> held_;  ///< each [Hq][T]
};

}  // namespace kvsim
