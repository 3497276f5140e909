#pragma once
#include <cmath>

namespace kvsim {

/// Over how many entries attention is spread: the perplexity exp(H) of what is added, taken as a
/// distribution.
class Spread {
 public:
  /// A >= 0 of one entry; A ln A, which is 0 for 0, may be known.
  void add(double attention) { add(attention, times_log(attention)); }
  void add(double attention, double times_log) {
    mass_ += attention;
    log_mass_ += times_log;
  }
  static double times_log(double attention) {
    return attention > 0 ? attention * std::log(attention) : 0;
  }
  /// With p = A / M and M = sum of A, H = ln M - (sum of A ln A) / M; 0 without attention.
  double entries() const { return mass_ > 0 ? mass_ * std::exp(-log_mass_ / mass_) : 0; }

 private:
  double mass_ = 0;
  double log_mass_ = 0;
};

}  // namespace kvsim
