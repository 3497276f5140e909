#include "sim/core/decimal.hpp"

#include <boost/multiprecision/cpp_int.hpp>
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

using Integer = boost::multiprecision::cpp_int;
using Rational = boost::multiprecision::cpp_rational;

int64_t floor_of(const Rational& x) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;  // twice it plus 1 still fits
  const Integer above = numerator(x), below = denominator(x);
  Integer whole = above / below;  // towards zero
  if (whole * below > above) --whole;
  return static_cast<int64_t>(std::clamp<Integer>(whole, -kMost, kMost));
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
  Rational value;

  int64_t floor_over(const Decimal& step) const {
    const Rational scale(pow(Integer(10), std::abs(step.exponent_)));
    const Rational whole(step.mantissa_);
    return floor_of(value /
                    (step.exponent_ < 0 ? Rational(whole / scale) : Rational(whole * scale)));
  }
};

void PositionDrift::add(int64_t row, int64_t count, int64_t sum) {
  if (count > 0 && rows_ > 1) sums_[count][row < rows_ / 2 ? 0 : 1] += sum;
}

PositionDrift::Fraction PositionDrift::fraction() const {
  Rational drift;
  const int64_t front = rows_ / 2, rear = rows_ - front;
  for (const auto& [count, sums] : sums_)
    drift += Rational(sums[0], front * count) - Rational(sums[1], rear * count);
  return {drift};
}

int PositionDrift::sign() const { return fraction().value.sign(); }

double PositionDrift::value() const {
  const Rational drift = fraction().value;
  return static_cast<double>(static_cast<long double>(numerator(drift)) /
                             static_cast<long double>(denominator(drift)));
}

int64_t PositionDrift::floor_over(const Decimal& step) const { return fraction().floor_over(step); }

int64_t PositionDrift::floor_size_over(const Decimal& step) const {
  return Fraction{abs(fraction().value)}.floor_over(step);
}

}  // namespace kvsim
