#pragma once
#include <cstdint>
#include <map>

#include "sim/core/decimal.hpp"

namespace kvsim {

/// How far the best entries of M rows stand apart, early against late (ReST-KV Eq. 10): the mean
/// over the first floor(M / 2) rows of each row's mean position, less that over the other rows.
/// Positions are integers, so signs and multiples are exact, and only value() rounds, as long as
/// fractions fit 128 bits: always, where every row has as many best entries as the others.
class PositionDrift {
 public:
  explicit PositionDrift(int64_t rows) : rows_(rows) {}  ///< M; 0 or 1 row never drifts
  /// The best entries of a row: how many, and the sum of their positions. Rows left out, or with
  /// no entry, count in M alone.
  void add(int64_t row, int64_t count, int64_t sum);

  int sign() const;                                    ///< -1, 0 or 1
  double value() const;                                ///< tokens
  int64_t floor_over(const Decimal& step) const;       ///< floor(drift / step); step > 0
  int64_t floor_size_over(const Decimal& step) const;  ///< floor(|drift| / step); step > 0

 private:
  struct Fraction;
  Fraction fraction() const;

  int64_t rows_;
  /// count -> sum of positions of the rows with that many, those of the first half times the size
  /// of the second, less the converse: over it and over both sizes this is their part of the drift.
  std::map<int64_t, __int128> parts_;
};

}  // namespace kvsim
