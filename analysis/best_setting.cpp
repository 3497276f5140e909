#include "analysis/best_setting.hpp"

#include "analysis/ranking.hpp"

namespace kvsim {
namespace {

/// Values of all settings, and on resamples of traces or steps.
class Resamples {
 public:
  Resamples(const std::vector<SettingSeries>& settings, const Criterion& criterion, uint64_t seed,
            const std::vector<bool>& ranked)
      : criterion_(criterion), seed_(seed), ranked_(ranked),
        units_(settings.front().size() > 1 ? Units::traces : Units::steps) {
    for (const SettingSeries& setting : settings) {
      std::vector<double> values;
      for (const std::vector<double>& trace : setting) values.push_back(criterion.fold(trace));
      series_.push_back(units_ == Units::traces ? values : setting.front());
      if (units_ == Units::steps) block_ = std::max(block_, block_length(series_.back()));
    }
    all_ = ascending<int64_t>(std::ssize(series_.front()));
  }

  double value(size_t setting) const { return value(setting, all_); }
  size_t best(int usual) const { return best(all_, usual); }

  Interval interval(size_t setting) const {
    if (units_ == Units::steps && criterion_.over == Fold::worst)
      return percentiles([&](std::span<const int64_t> drawn) { return value(setting, drawn); });
    const bool root = units_ == Units::steps && criterion_.over == Fold::rms;
    const Interval found = estimate(squared(setting, root), units_, criterion_.scale()).interval;
    return root ? Interval{std::sqrt(found.low), std::sqrt(found.high)} : found;
  }

  /// Of the value of a setting less that of another; `sign` turns it.
  Interval gain(size_t setting, size_t other, double sign) const {
    if (units_ == Units::steps && criterion_.over == Fold::worst)
      return percentiles([&](std::span<const int64_t> drawn) {
        return sign * (value(setting, drawn) - value(other, drawn));
      });
    const bool root = units_ == Units::steps && criterion_.over == Fold::rms;
    // A root mean square moves with each square as this share of it does.
    const auto scaled = [&](size_t s) {
      std::vector<double> values = squared(s, root);
      const double slope = root ? 1 / std::max(2 * value(s), 1e-300) : 1;
      for (double& x : values) x *= sign * slope;
      return values;
    };
    const Bounded found = difference(scaled(setting), scaled(other), units_, Scale::plain);
    const double moved = sign * (value(setting) - value(other)) - found.value;
    return {found.interval.low + moved, found.interval.high + moved};
  }

  /// Share of the resamples in which `setting` is the best.
  double chosen(size_t setting, int usual) const {
    int64_t times = 0;
    int64_t won = 0;
    if (all_.empty()) return kUndefined;
    resample(std::ssize(all_), units_, block_, seed_, [&](std::span<const int64_t> drawn) {
      ++times;
      won += best(drawn, usual) == setting;
    });
    return static_cast<double>(won) / static_cast<double>(times);
  }

 private:
  /// Of the traces or steps that `drawn` names.
  double value(size_t setting, std::span<const int64_t> drawn) const {
    std::vector<double> values;
    for (const int64_t unit : drawn) values.push_back(series_[setting][unit]);
    if (units_ == Units::steps) return criterion_.fold(values);
    return estimate(values, units_, criterion_.scale()).value;
  }

  size_t best(std::span<const int64_t> drawn, int usual) const {
    std::vector<double> values;
    for (size_t s = 0; s < series_.size(); ++s) values.push_back(value(s, drawn));
    const std::vector<bool> found = best_of(values, ranked_, criterion_.more_is_better);
    if (usual >= 0 && found[usual]) return static_cast<size_t>(usual);
    const auto first = std::ranges::find(found, true);
    const auto in = std::ranges::find(ranked_, true);
    return static_cast<size_t>(first != found.end() ? first - found.begin() : in - ranked_.begin());
  }

  std::vector<double> squared(size_t setting, bool root) const {
    std::vector<double> values;
    for (const double x : series_[setting])
      if (!std::isnan(x)) values.push_back(root ? x * x : x);
    return values;
  }

  template <class Statistic>
  Interval percentiles(const Statistic& statistic) const {
    std::vector<double> found;
    if (!all_.empty())
      resample(std::ssize(all_), units_, block_, seed_,
               [&](std::span<const int64_t> drawn) { found.push_back(statistic(drawn)); });
    return {percentile(found, 2.5), percentile(found, 97.5)};
  }

  const Criterion& criterion_;
  uint64_t seed_;
  const std::vector<bool>& ranked_;
  Units units_;
  int64_t block_ = 1;
  std::vector<std::vector<double>> series_;  ///< [setting][trace or step]
  std::vector<int64_t> all_;                 ///< 0, 1, ...
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
  for (const Criterion& criterion : criteria())
    if (measures.empty() || measures.back() != criterion.variable)
      measures.push_back(criterion.variable);
  return measures;
}

std::vector<std::string> usual_measures(const std::vector<std::string>& measured) {
  const auto has = [&](const char* name) { return contains(measured, name); };
  std::vector<std::string> usual;
  for (const char* lead : {"stream_error", "output_error"})
    if (usual.empty() && has(lead)) usual.emplace_back(lead);
  if (has("retained_importance")) usual.emplace_back("retained_importance");
  return usual;
}

BestSetting best_setting(const std::vector<SettingSeries>& settings, int usual,
                         const Criterion& criterion, uint64_t seed,
                         const std::vector<bool>& ranked) {
  const std::vector<bool> in = ranked.empty() ? std::vector<bool>(settings.size(), true) : ranked;
  const Resamples resamples(settings, criterion, seed, in);
  BestSetting result;
  result.best = resamples.best(usual);
  result.value = resamples.value(result.best);
  result.interval = resamples.interval(result.best);
  result.chosen = resamples.chosen(result.best, usual);
  if (usual < 0) return result;
  const auto other = static_cast<size_t>(usual);
  const double sign = criterion.more_is_better ? 1 : -1;
  result.usual = resamples.value(other);
  result.gain = sign * (result.value - result.usual) + 0.0;  // no -0
  result.gain_interval = resamples.gain(result.best, other, sign);
  return result;
}

}  // namespace kvsim
