#include "sim/core/decimal.hpp"

#include <boost/multiprecision/cpp_int.hpp>
#include <cctype>
#include <charconv>
#include <cstdlib>

namespace kvsim {
namespace {

constexpr int kMaxDigits = 18;  // of a mantissa

using Integer = boost::multiprecision::cpp_int;
using Rational = boost::multiprecision::cpp_rational;

Integer power_of_ten(int exponent) { return pow(Integer(10), static_cast<unsigned>(exponent)); }

int64_t floor_of(const Rational& x) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;  // twice it plus 1 still fits
  const Integer above = numerator(x), below = denominator(x);
  Integer whole = above / below;  // towards zero
  if (whole * below > above) --whole;
  return static_cast<int64_t>(std::clamp<Integer>(whole, -kMost, kMost));
}

}  // namespace

struct Decimal::Exact {
  static Rational of(const Decimal& x) {
    return x.exponent_ < 0 ? Rational(x.mantissa_, power_of_ten(-x.exponent_))
                           : Rational(x.mantissa_ * power_of_ten(x.exponent_));
  }
  /// In the one form of the value, which keeps exponents small; nothing when it has > 18 digits.
  static std::optional<Decimal> make(Integer mantissa, int exponent) {
    for (; mantissa != 0 && mantissa % 10 == 0; ++exponent) mantissa /= 10;
    if (abs(mantissa) >= power_of_ten(kMaxDigits)) return std::nullopt;
    Decimal d(static_cast<int64_t>(mantissa));
    if (mantissa != 0) d.exponent_ = exponent;
    return d;
  }
};

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
  return Exact::make(negative ? -d.mantissa_ : d.mantissa_, d.exponent_ - (percent ? 2 : 0));
}

double Decimal::value() const {
  // The decimal text read back by the library is the nearest double; mantissa * pow() need not be.
  const std::string text = std::to_string(mantissa_) + "e" + std::to_string(exponent_);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int64_t Decimal::floor_times(int64_t count) const { return floor_of(Exact::of(*this) * count); }

int64_t Decimal::half_even_times(int64_t count, int64_t plus) const {
  const Rational value = Exact::of(*this) * count + plus;
  const int64_t down = floor_of(value);
  const Rational twice = (value - down) * 2;
  return twice < 1 || (twice == 1 && down % 2 == 0) ? down : down + 1;
}

int64_t Decimal::floor_times(int64_t count, const Decimal& other) const {
  return floor_of(Exact::of(*this) * Exact::of(other) * count);
}

int64_t Decimal::floor_divide(int64_t count) const { return floor_of(count / Exact::of(*this)); }

Decimal Decimal::one_minus() const {
  return Decimal(1).advanced(*this, -1).value_or(Decimal(1));  // less than 18 digits show
}

std::optional<Decimal> Decimal::advanced(const Decimal& step, int64_t count) const {
  const int low = std::min({exponent_, step.exponent_, 0});
  const Rational sum = Exact::of(*this) + Exact::of(step) * count;
  return Exact::make(numerator(Rational(sum * power_of_ten(-low))), low);
}

bool operator<(const Decimal& a, const Decimal& b) {
  return Decimal::Exact::of(a) < Decimal::Exact::of(b);
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
    return floor_of(value / Decimal::Exact::of(step));
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
