#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim {

/// One step of SplitMix64: f(y) of policies.md 12.
constexpr uint64_t split_mix(uint64_t y) {
  uint64_t z = y + 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
static_assert(split_mix(0) == 0xE220A8397B1DCDAFull);

/// u(a, b, c, d) in [0, 1): a counter-based draw, the same whatever the order of evaluation.
constexpr double uniform(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  const uint64_t x = split_mix(split_mix(split_mix(split_mix(a) + b) + c) + d);
  return static_cast<double>(x >> 11) * 0x1p-53;
}

/// ln(e^a + e^b), without overflow; -inf stands for a term of 0.
inline double log_add(double a, double b) {
  const double larger = std::max(a, b);
  if (larger == -std::numeric_limits<double>::infinity()) return larger;
  return larger + std::log1p(std::exp(std::min(a, b) - larger));
}

/// ln of the sum of e^x over some x.
inline double log_sum_exp(std::span<const float> all) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const float x : all) top = std::max(top, static_cast<double>(x));
  if (top == -std::numeric_limits<double>::infinity()) return top;
  for (const float x : all) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

/// Softmax of the numbers, in place.
inline void softmax(std::span<double> x) {
  if (x.empty()) return;
  const double top = *std::ranges::max_element(x);
  double sum = 0;
  for (double& value : x) sum += value = std::exp(value - top);
  for (double& value : x) value /= sum;
}

/// Change of a head's output o when one slot takes the place of its members, all else left as
/// in the full cache (metrics.md 3, parts of the error), as L2 norms before W_O:
///   o' - o = a' (v^ - v_M) + (a' - a) (v_M - v_rest),
/// a and a' the attention on the members and on the slot, v_M the members' mean value, v^ the
/// slot's, v_rest the mean of everything else.
struct SlotChange {
  double value_part = 0;  ///< first term
  double mass_part = 0;   ///< second term
  double whole = 0;       ///< their sum
};

/// on_slot (v^ - v_M) + moved (v_M - other).
template <class Value, class Other>
SlotChange moved_by(double on_slot, double moved, std::span<const double> member_mean,
                    std::span<const Value> slot_value, std::span<const Other> other) {
  double value = 0, mass = 0, both = 0;
  for (size_t c = 0; c < member_mean.size(); ++c) {
    const double by_value = on_slot * (slot_value[c] - member_mean[c]);
    const double by_mass = moved * (member_mean[c] - other[c]);
    value += by_value * by_value;
    mass += by_mass * by_mass;
    both += (by_value + by_mass) * (by_value + by_mass);
  }
  return {std::sqrt(value), std::sqrt(mass), std::sqrt(both)};
}

/// `attention`: a in [0, 1]; `defect`: log-weight + logit of the slot minus log-sum-exp of the
/// members' logits, nats; `output`: o of the full cache. All vectors are [dv]. v_M - v_rest is
/// (v_M - o) / (1 - a), which needs no second sum.
template <class Value, class Output>
SlotChange slot_change(double attention, double defect, std::span<const double> member_mean,
                       std::span<const Value> slot_value, std::span<const Output> output) {
  // a' and (a' - a) / (1 - a), each without a difference of near numbers.
  const double a = attention;
  const double u = std::exp(-std::fabs(defect));
  const double gain = -std::expm1(-std::fabs(defect));  // 1 - u
  const double total = defect > 0 ? u + a * gain : 1 - a * gain;
  const double on_slot = (defect > 0 ? a : a * u) / total;
  const double moved = (defect > 0 ? a : -a) * gain / total;
  return moved_by(on_slot, moved, member_mean, slot_value, output);
}

/// From this attention on the members on, 1 - a and o say too little about everything else in
/// float32 (relative error 1e-7 / (1 - a)): slot_change_beside() is for those.
constexpr double kNearlyAll = 0.99;

/// Computes it from ln(mass of the members / mass of everything else) and v_rest itself.
template <class Value>
SlotChange slot_change_beside(double log_odds, double defect, std::span<const double> member_mean,
                              std::span<const Value> slot_value, std::span<const double> rest) {
  const auto logistic = [](double x) { return 1 / (1 + std::exp(-x)); };
  const double on_slot = logistic(log_odds + defect);
  // a' - a, without a difference of near numbers and without overflow.
  const double moved = defect > 0
                           ? -std::expm1(-defect) * on_slot * logistic(-log_odds)
                           : std::expm1(defect) * logistic(log_odds) * logistic(-log_odds - defect);
  return moved_by(on_slot, moved, member_mean, slot_value, rest);
}

}  // namespace kvsim
