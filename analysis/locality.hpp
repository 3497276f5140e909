#pragma once
#include <cstdint>
#include <vector>

#include "sim/backend/backend.hpp"

namespace kvsim {

/// Are an entry's attention scores alike at neighbouring steps (metrics.md 5.3)? Per query head the
/// variance within disjoint windows of 16 steps over the total variance, both summed over prompt
/// entries, compared with the same for random orders of the steps. The windows' sums come from the
/// Gram matrix of the steps, so that every order costs no more than adding up its blocks. Holds the
/// rows of one KV head's queries, g * T * n floats.
class Locality {
 public:
  struct Result {
    double within = 0;    ///< Q
    double permuted = 0;  ///< mean Q over 20 random orders
    double locality = 0;  ///< 1 - Q / Q_perm; NaN for fewer than 32 steps or no variance
  };

  Locality(int query_heads, int64_t entries, int64_t steps, uint64_t seed);
  /// Blocks of a KV head in the order of their rows.
  void add(const AttentionBlock& block, int64_t first_row);
  const Result& result(int query_head) const { return results_[static_cast<size_t>(query_head)]; }

 private:
  Result measure(const Table<float>& rows) const;

  int64_t entries_;
  int64_t used_;                              ///< steps in whole windows; 0: too few
  std::vector<std::vector<int64_t>> orders_;  ///< as they are, then the random ones
  std::vector<Table<float>> rows_;            ///< [used][n] of each head of the KV head at work
  std::vector<Result> results_;               ///< [Hq]
};

}  // namespace kvsim
