#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim {

/// A decimal number as typed: mantissa * 10^exponent, exact. Products with counts are exact, so
/// that 0.2 of 10 entries is 2 and never 1.
class Decimal {
 public:
  Decimal() = default;
  explicit Decimal(int64_t integer) : mantissa_(integer) {}
  /// "0.2", "20%", "1e-4", "-3"; nothing when the text is not such a number or has > 18 digits.
  static std::optional<Decimal> parse(std::string_view text);

  double value() const;                      ///< nearest double
  int64_t floor_times(int64_t count) const;  ///< floor(this * count), exact; count >= 0
  int64_t floor_times(int64_t count, const Decimal& other) const;  ///< floor(this * count * other)
  int64_t half_even_times(int64_t count, int64_t plus = 0) const;
  ///< this * count + plus rounded half to even, exact
  int64_t floor_divide(int64_t count) const;  ///< floor(count / this), exact; this > 0
  Decimal one_minus() const;                  ///< 1 - this, exact
  /// this + step * count, exact; nothing when the sum has > 18 digits.
  std::optional<Decimal> advanced(const Decimal& step, int64_t count) const;
  std::string text() const;  ///< shortest decimal that reads back to value()

  friend bool operator==(const Decimal&, const Decimal&) = default;  // one form per value
  friend bool operator<(const Decimal& a, const Decimal& b);         // exact

 private:
  friend class PositionDrift;
  struct Exact;
  int64_t mantissa_ = 0;
  int exponent_ = 0;
};

/// Shortest decimal text that reads back to the same double ("0.2", "16", "1e-04" never).
std::string shortest(double value);

/// How far the best entries of M rows stand apart, early against late (ReST-KV Eq. 10): the mean
/// over the first floor(M / 2) rows of each row's mean position, less that over the other rows.
/// Positions are integers, so signs and multiples are exact, and only value() rounds.
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
  /// count -> sums of positions of the rows with that many, of the first half and of the second.
  std::map<int64_t, std::array<int64_t, 2>> sums_;
};

}  // namespace kvsim
