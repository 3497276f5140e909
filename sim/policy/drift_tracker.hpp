#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/core/position_drift.hpp"

namespace kvsim {

/// Where the K best entries of the observing rows stand, early against late (ReST-KV Eq. 10).
class DriftTracker {
 public:
  /// `best`: the values of K to follow, one result each.
  DriftTracker(std::vector<int64_t> best, int64_t rows);
  /// Rows may come side by side, each once.
  void add(int64_t j, std::span<const double> row);
  PositionDrift drift(size_t variant) const;  ///< Delta; 0 if K = 0 or there is one row

 private:
  std::vector<int64_t> best_;
  std::vector<size_t> ascending_;  // variants by K
  Table<int64_t> counts_;          // [rows][variants] how many best a row has
  Table<int64_t> sums_;            // [rows][variants] sum of their positions
};

}  // namespace kvsim
