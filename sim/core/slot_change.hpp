#pragma once
#include <cmath>
#include <cstddef>
#include <span>

namespace kvsim {

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
  double value = 0, mass = 0, both = 0;
  for (size_t c = 0; c < member_mean.size(); ++c) {
    const double by_value = on_slot * (static_cast<double>(slot_value[c]) - member_mean[c]);
    const double by_mass = moved * (member_mean[c] - static_cast<double>(output[c]));
    value += by_value * by_value;
    mass += by_mass * by_mass;
    both += (by_value + by_mass) * (by_value + by_mass);
  }
  return {std::sqrt(value), std::sqrt(mass), std::sqrt(both)};
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
  double value = 0, mass = 0, both = 0;
  for (size_t c = 0; c < member_mean.size(); ++c) {
    const double by_value = on_slot * (static_cast<double>(slot_value[c]) - member_mean[c]);
    const double by_mass = moved * (member_mean[c] - rest[c]);
    value += by_value * by_value;
    mass += by_mass * by_mass;
    both += (by_value + by_mass) * (by_value + by_mass);
  }
  return {std::sqrt(value), std::sqrt(mass), std::sqrt(both)};
}

}  // namespace kvsim
