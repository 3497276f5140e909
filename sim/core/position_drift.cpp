#include "sim/core/position_drift.hpp"

#include <cmath>
#include <limits>
#include <string>

namespace kvsim {
namespace {

using Wide = __int128;

/// A product that is no longer exact once it leaves 128 bits.
Wide times(Wide a, Wide b, bool& exact) {
  Wide product = 0;
  if (__builtin_mul_overflow(a, b, &product)) exact = false;
  return product;
}

Wide common_divisor(Wide a, Wide b) {
  if (a < 0) a = -a;
  while (b != 0) {
    const Wide rest = a % b;
    a = b;
    b = rest;
  }
  return a == 0 ? 1 : a;
}

template <class Number>
int64_t narrowed(Number value) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max() / 4;  // twice it plus 1 still fits
  if (value > static_cast<Number>(most)) return most;
  return value < static_cast<Number>(-most) ? -most : static_cast<int64_t>(value);
}

}  // namespace

struct PositionDrift::Fraction {
  Wide above = 0;
  Wide below = 1;        // > 0
  long double near = 0;  // the value, rounded
  bool exact = true;     // above and below hold it

  void add(const Fraction& other) {
    near += other.near;
    exact = exact && other.exact;
    const Wide shared = common_divisor(below, other.below);
    const Wide mine = times(above, other.below / shared, exact);
    const Wide others = times(other.above, below / shared, exact);
    if (__builtin_add_overflow(mine, others, &above)) exact = false;
    below = times(below, other.below / shared, exact);
    if (!exact) return;
    const Wide factor = common_divisor(above, below);
    above /= factor;
    below /= factor;
  }
  int64_t floor_over(const Decimal& step) const {
    std::string digits = step.text();  // "0.25": exact, as in canonical records
    const size_t point = digits.find('.');
    bool fits = exact;
    Wide over = above, digit_value = 0;
    if (point != std::string::npos) {
      for (size_t k = point + 1; k < digits.size(); ++k) over = times(over, 10, fits);
      digits.erase(point, 1);
    }
    for (const char digit : digits) digit_value = times(digit_value, 10, fits) + (digit - '0');
    const Wide under = times(below, digit_value, fits);
    if (!fits) return narrowed(std::floor(near / static_cast<long double>(step.value())));
    const Wide quotient = over / under;  // towards zero
    return narrowed(over < 0 && quotient * under != over ? quotient - 1 : quotient);
  }
};

void PositionDrift::add(int64_t row, int64_t count, int64_t sum) {
  if (count <= 0 || rows_ < 2) return;
  const int64_t front = rows_ / 2, rear = rows_ - front;
  parts_[count] += static_cast<Wide>(sum) * (row < front ? rear : -front);
}

PositionDrift::Fraction PositionDrift::fraction() const {
  Fraction drift;
  const int64_t front = rows_ / 2;
  const Wide sizes = static_cast<Wide>(front) * (rows_ - front);
  for (const auto& [count, part] : parts_) {
    Fraction one;
    one.above = part;
    one.below = times(sizes, count, one.exact);
    one.near = static_cast<long double>(part) / static_cast<long double>(sizes) /
               static_cast<long double>(count);
    drift.add(one);
  }
  return drift;
}

int PositionDrift::sign() const {
  const Fraction drift = fraction();
  if (drift.exact) return drift.above > 0 ? 1 : drift.above < 0 ? -1 : 0;
  return drift.near > 0 ? 1 : drift.near < 0 ? -1 : 0;
}

double PositionDrift::value() const {
  const Fraction drift = fraction();
  if (!drift.exact) return static_cast<double>(drift.near);
  return static_cast<double>(static_cast<long double>(drift.above) /
                             static_cast<long double>(drift.below));
}

int64_t PositionDrift::floor_over(const Decimal& step) const { return fraction().floor_over(step); }

int64_t PositionDrift::floor_size_over(const Decimal& step) const {
  Fraction drift = fraction();
  if (drift.above < 0) drift.above = -drift.above;
  drift.near = std::fabs(drift.near);
  return drift.floor_over(step);
}

}  // namespace kvsim
