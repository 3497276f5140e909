#include "sim/core/decimal.hpp"

#include <cctype>
#include <charconv>
#include <cstdlib>

namespace kvsim {
namespace {

using Wide = __int128;
constexpr int kMaxDigits = 18;  // a mantissa of 18 digits times a count below 2^63 fits 128 bits

Wide power_of_ten(int exponent) {
  Wide p = 1;
  for (int i = 0; i < exponent; ++i) p *= 10;
  return p;
}

/// floor(mantissa * 10^exponent * count) for count >= 0.
int64_t scaled_floor(Wide mantissa, int exponent, int64_t count) {
  const Wide product = mantissa * count;
  if (product == 0) return 0;
  if (exponent >= 0) return static_cast<int64_t>(product * power_of_ten(std::min(exponent, 18)));
  if (-exponent > 36) return product < 0 ? -1 : 0;
  const Wide divisor = power_of_ten(-exponent);
  Wide quotient = product / divisor;
  if (product % divisor != 0 && product < 0) --quotient;
  return static_cast<int64_t>(quotient);
}

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

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal d;
  bool percent = false;
  if (!text.empty() && text.back() == '%') {
    percent = true;
    text.remove_suffix(1);
  }
  size_t i = 0;
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) ++i;
  int digits = 0;
  int seen = 0;
  bool point = false;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !point) {
      point = true;
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      ++seen;
      if (d.mantissa_ != 0 || c != '0') ++digits;
      if (digits > kMaxDigits) return std::nullopt;
      d.mantissa_ = d.mantissa_ * 10 + (c - '0');
      if (point) --d.exponent_;
    } else {
      break;
    }
  }
  if (seen == 0) return std::nullopt;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    int exponent = 0;
    size_t from = i + 1;
    if (from < text.size() && text[from] == '+') ++from;
    const auto [end, fault] = std::from_chars(text.data() + from, text.data() + text.size(),
                                              exponent);
    if (fault != std::errc() || end != text.data() + text.size() || std::abs(exponent) > 300)
      return std::nullopt;
    d.exponent_ += exponent;
    i = text.size();
  }
  if (i != text.size()) return std::nullopt;
  if (percent) d.exponent_ -= 2;
  if (negative) d.mantissa_ = -d.mantissa_;
  while (d.mantissa_ != 0 && d.mantissa_ % 10 == 0) {  // one form per value keeps exponents small
    d.mantissa_ /= 10;
    ++d.exponent_;
  }
  if (d.mantissa_ == 0) d.exponent_ = 0;
  return d;
}

double Decimal::value() const {
  // The decimal text read back by the library is the nearest double; mantissa * pow() need not be.
  const std::string text = std::to_string(mantissa_) + "e" + std::to_string(exponent_);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int64_t Decimal::floor_times(int64_t count) const {
  return scaled_floor(mantissa_, exponent_, count);
}

int64_t Decimal::half_even_times(int64_t count, int64_t plus) const {
  const int64_t twice = floor_times(2 * count) + 2 * plus;  // floor of twice the value
  const int64_t down = twice >= 0 ? twice / 2 : -((1 - twice) / 2);
  if (twice == 2 * down) return down;  // below the half
  const bool half = scaled_floor(-mantissa_, exponent_, 2 * count) == -floor_times(2 * count);
  return half && down % 2 == 0 ? down : down + 1;
}

int64_t Decimal::floor_times(int64_t count, const Decimal& other) const {
  // Both mantissas rarely have more than a few digits; long ones fall back to long double.
  const Wide product = static_cast<Wide>(mantissa_) * other.mantissa_;
  const Wide limit = std::numeric_limits<Wide>::max() / std::max<int64_t>(count, 1);
  if (product > limit || product < -limit)
    return static_cast<int64_t>(
        std::floor(static_cast<long double>(value()) * static_cast<long double>(other.value()) *
                   static_cast<long double>(count)));
  return scaled_floor(product, exponent_ + other.exponent_, count);
}

int64_t Decimal::floor_divide(int64_t count) const {
  const Wide mantissa = mantissa_;
  if (exponent_ >= 0) return static_cast<int64_t>(count / (mantissa * power_of_ten(exponent_)));
  return static_cast<int64_t>(count * power_of_ten(-exponent_) / mantissa);
}

Decimal Decimal::one_minus() const {
  Decimal d;
  if (exponent_ >= 0) {
    d.mantissa_ = 1 - static_cast<int64_t>(mantissa_ * power_of_ten(std::min(exponent_, 17)));
    return d;
  }
  d.exponent_ = std::max(exponent_, -kMaxDigits);
  d.mantissa_ = static_cast<int64_t>(power_of_ten(-d.exponent_)) - mantissa_;
  return d;
}

std::optional<Decimal> Decimal::advanced(const Decimal& step, int64_t count) const {
  if (step.mantissa_ == 0 || count == 0) return *this;
  const int low = mantissa_ == 0 ? step.exponent_ : std::min(exponent_, step.exponent_);
  const int shift = mantissa_ == 0 ? 0 : exponent_ - low;
  if (shift > kMaxDigits || step.exponent_ - low > kMaxDigits) return std::nullopt;
  // 18 digits times 10^18 fit 128 bits; the second product is checked.
  Wide sum = static_cast<Wide>(step.mantissa_) * power_of_ten(step.exponent_ - low);
  if (__builtin_mul_overflow(sum, static_cast<Wide>(count), &sum) ||
      __builtin_add_overflow(sum, static_cast<Wide>(mantissa_) * power_of_ten(shift), &sum))
    return std::nullopt;
  Decimal d;
  d.exponent_ = low;
  while (sum != 0 && sum % 10 == 0) {
    sum /= 10;
    ++d.exponent_;
  }
  const Wide limit = power_of_ten(kMaxDigits);
  if (sum >= limit || sum <= -limit) return std::nullopt;
  d.mantissa_ = static_cast<int64_t>(sum);
  if (d.mantissa_ == 0) d.exponent_ = 0;
  return d;
}

bool operator<(const Decimal& a, const Decimal& b) {
  // Doubles decide unless they agree; then both have nearly the same size and can be aligned.
  const double x = a.value(), y = b.value();
  if (x != y) return x < y;
  const int low = std::min(a.exponent_, b.exponent_);
  if (a.exponent_ - low > kMaxDigits || b.exponent_ - low > kMaxDigits) return false;
  return a.mantissa_ * power_of_ten(a.exponent_ - low) <
         b.mantissa_ * power_of_ten(b.exponent_ - low);
}

std::string Decimal::text() const { return shortest(value()); }

std::string shortest(double value) {
  if (value == 0) return "0";
  char buffer[400];  // the longest fixed form of a double has about 330 characters
  const auto [end, fault] = std::to_chars(buffer, buffer + sizeof buffer, value,
                                          std::chars_format::fixed);
  return fault == std::errc() ? std::string(buffer, end) : std::to_string(value);
}

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
