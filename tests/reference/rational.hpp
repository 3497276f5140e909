#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim::reference {

/// A fraction of integers, for counts that the rules define exactly. Small numbers only.
struct Rational {
  __int128 above = 0;
  __int128 below = 1;

  Rational(int64_t integer = 0) : above(integer) {}  // NOLINT: integers are rationals
  Rational(__int128 a, __int128 b) : above(a), below(b) {
    if (below < 0) above = -above, below = -below;
    __int128 x = above < 0 ? -above : above, y = below;
    while (y != 0) {
      const __int128 rest = x % y;
      x = y;
      y = rest;
    }
    if (x > 1) above /= x, below /= x;
  }
  /// "0.25", "3", "1e-05", "20%".
  static Rational parse(std::string text) {
    Rational result;
    if (text.ends_with('%')) {
      text.pop_back();
      result.below = 100;
    }
    if (const size_t e = text.find('e'); e != std::string::npos) {
      for (int power = std::stoi(text.substr(e + 1)); power < 0; ++power) result.below *= 10;
      text.resize(e);
    }
    bool point = false, minus = false;
    for (const char c : text) {
      if (c == '.')
        point = true;
      else if (c == '-')
        minus = true;
      else {
        result.above = result.above * 10 + (c - '0');
        if (point) result.below *= 10;
      }
    }
    return {minus ? -result.above : result.above, result.below};
  }

  friend Rational operator+(Rational a, Rational b) {
    return {a.above * b.below + b.above * a.below, a.below * b.below};
  }
  friend Rational operator-(Rational a, Rational b) {
    return {a.above * b.below - b.above * a.below, a.below * b.below};
  }
  friend Rational operator*(Rational a, Rational b) {
    return {a.above * b.above, a.below * b.below};
  }
  friend Rational operator/(Rational a, Rational b) {
    return {a.above * b.below, a.below * b.above};
  }
  friend bool operator<(Rational a, Rational b) { return a.above * b.below < b.above * a.below; }
  friend bool operator<=(Rational a, Rational b) { return !(b < a); }
  friend bool operator==(Rational a, Rational b) {
    return a.above == b.above && a.below == b.below;
  }

  int64_t floor() const {
    const __int128 down = above / below;
    return static_cast<int64_t>(above < 0 && down * below != above ? down - 1 : down);
  }
  int64_t half_up() const { return (*this + Rational(1, 2)).floor(); }
  int64_t half_even() const {
    const int64_t down = floor();
    const Rational rest = *this - Rational(down);
    if (rest == Rational(1, 2)) return down % 2 == 0 ? down : down + 1;
    return half_up();
  }
  double value() const { return static_cast<double>(above) / static_cast<double>(below); }
};

}  // namespace kvsim::reference
