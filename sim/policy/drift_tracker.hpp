#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/array.hpp"

namespace kvsim {

/// Where the K best entries of the observing rows stand, early against late (ReST-KV Eq. 10):
/// Delta = mean position over the first half of the rows - mean position over the other half.
class DriftTracker {
 public:
  /// `best`: the values of K to follow, one result each.
  DriftTracker(std::vector<int64_t> best, int64_t rows);
  /// Rows may come side by side, each once.
  void add(int64_t j, std::span<const double> row);
  double drift(size_t variant) const;   ///< tokens; 0 if K = 0 or there is one row

 private:
  std::vector<int64_t> best_;
  std::vector<size_t> ascending_;   // variants by K
  Table<double> means_;             // [rows][variants] mean position of a row's best
};

}  // namespace kvsim
