#include "analysis/best_setting.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "analysis/summary.hpp"
#include "analysis/undefined.hpp"

namespace kvsim {
namespace {

/// Settings with equal kept sets differ by the rounding of sums that share partial results.
constexpr double kEqual = 1e-7;

/// Values of all settings on a resample of traces or steps.
class Resamples {
 public:
  Resamples(const std::vector<SettingSeries>& settings, const Criterion& criterion, uint64_t seed)
      : criterion_(criterion), seed_(seed), over_traces_(settings.front().size() > 1) {
    for (const SettingSeries& setting : settings) {
      std::vector<double> values;
      for (const std::vector<double>& trace : setting) values.push_back(criterion.fold(trace));
      units_.push_back(over_traces_ ? values : setting.front());
    }
    all_.resize(units_.front().size());
    std::iota(all_.begin(), all_.end(), 0.0);
  }

  /// Of the traces or steps that `drawn` names.
  double value(size_t setting, std::span<const double> drawn) const {
    std::vector<double> values;
    for (const double unit : drawn) {
      values.push_back(units_[setting][static_cast<size_t>(unit)]);
    }
    return over_traces_ ? mean(values) : criterion_.fold(values);
  }
  double value(size_t setting) const { return value(setting, all_); }

  size_t best(std::span<const double> drawn, int usual) const {
    std::vector<double> values;
    for (size_t s = 0; s < units_.size(); ++s) {
      const double sign = criterion_.more_is_better ? 1 : -1;
      values.push_back(sign * value(s, drawn));
    }
    const double most = maximum(values);
    const auto equal = [&](double x) { return x >= most - kEqual * std::abs(most); };
    if (usual >= 0 && equal(values[static_cast<size_t>(usual)])) return static_cast<size_t>(usual);
    const auto found = std::ranges::find_if(values, equal);
    return found == values.end() ? 0 : static_cast<size_t>(found - values.begin());
  }
  size_t best(int usual) const { return best(all_, usual); }

  /// Of the value of a setting, less that of `other` if there is one: over traces, or over steps.
  Interval interval(size_t setting, std::optional<size_t> other, double sign) const {
    if (!over_traces_) {
      return bootstrap_steps(all_, seed_, [&](std::span<const double> drawn) {
        return other ? sign * (value(setting, drawn) - value(*other, drawn))
                     : value(setting, drawn);
      });
    }
    std::vector<double> values = units_[setting];
    for (size_t k = 0; other && k < values.size(); ++k) {
      values[k] = sign * (values[k] - units_[*other][k]);
    }
    return mean_interval(values);
  }

  /// Share of the resamples of traces or steps in which `setting` is the best.
  double chosen(size_t setting, int usual) const {
    int64_t times = 0;
    int64_t won = 0;
    const auto seen = [&](std::span<const double> drawn) {
      ++times;
      won += best(drawn, usual) == setting;
      return 0.0;
    };
    if (over_traces_) {
      resample_traces(all_, seed_, seen);
    } else {
      bootstrap_steps(all_, seed_, seen);
    }
    return times == 0 ? kUndefined : static_cast<double>(won) / static_cast<double>(times);
  }

 private:
  const Criterion& criterion_;
  uint64_t seed_;
  bool over_traces_;
  std::vector<std::vector<double>> units_;  ///< [setting][trace or step]
  std::vector<double> all_;                 ///< 0, 1, ...: what the bootstrap draws from
};

}  // namespace

double Criterion::fold(std::span<const double> values) const {
  switch (over) {
    case Fold::mean: return mean(values);
    case Fold::rms: return root_mean_square(values);
    case Fold::worst: break;
  }
  return more_is_better ? minimum(values) : maximum(values);
}

const std::vector<Criterion>& criteria() {
  static const std::vector<Criterion> all = {
      {.variable = "stream_error", .over = Fold::rms, .more_is_better = false},
      {.variable = "retained_importance"},
      {.variable = "retained_importance", .over = Fold::worst},
      {.variable = "output_error", .more_is_better = false},
      {.variable = "residual_error", .over = Fold::worst, .more_is_better = false}};
  return all;
}

std::vector<std::string> judged_measures() {
  std::vector<std::string> measures;
  for (const Criterion& criterion : criteria()) {
    if (measures.empty() || measures.back() != criterion.variable)
      measures.push_back(criterion.variable);
  }
  return measures;
}

std::vector<std::string> usual_measures(const std::vector<std::string>& measured) {
  const auto has = [&](const char* name) {
    return std::ranges::find(measured, name) != measured.end();
  };
  std::vector<std::string> usual;
  for (const char* lead : {"stream_error", "output_error"})
    if (usual.empty() && has(lead)) usual.emplace_back(lead);
  if (has("retained_importance")) usual.emplace_back("retained_importance");
  return usual;
}

BestSetting best_setting(const std::vector<SettingSeries>& settings, int usual,
                         const Criterion& criterion, uint64_t seed) {
  const Resamples resamples(settings, criterion, seed);
  BestSetting result;
  result.best = resamples.best(usual);
  result.value = resamples.value(result.best);
  result.interval = resamples.interval(result.best, std::nullopt, 1);
  result.chosen = resamples.chosen(result.best, usual);
  result.usual = result.gain = kUndefined;
  result.gain_interval = {kUndefined, kUndefined};
  if (usual < 0) return result;
  const auto other = static_cast<size_t>(usual);
  const double sign = criterion.more_is_better ? 1 : -1;
  result.usual = resamples.value(other);
  result.gain = sign * (result.value - result.usual);
  result.gain_interval = resamples.interval(result.best, other, sign);
  return result;
}

}  // namespace kvsim
