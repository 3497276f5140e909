#include "analysis/best_setting.hpp"

#include "analysis/ranking.hpp"

namespace kvsim {
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
                         const Criterion& criterion, uint64_t seed, std::vector<bool> ranked) {
  if (ranked.empty()) ranked.assign(settings.size(), true);
  const bool steps = settings.front().size() == 1;
  const Units units = steps ? Units::steps : Units::traces;
  std::vector<std::vector<double>> series;  // [setting][trace or step]
  for (const SettingSeries& setting : settings) {
    series.push_back(steps ? setting.front() : std::vector<double>());
    for (const std::vector<double>& trace : setting)
      if (!steps) series.back().push_back(criterion.fold(trace));
  }
  for (int64_t unit = std::ssize(series.front()); unit-- > 0;)
    if (std::ranges::all_of(series, [&](const auto& own) { return std::isnan(own[unit]); }))
      for (std::vector<double>& own : series) own.erase(own.begin() + unit);
  int64_t block = 1;
  for (const std::vector<double>& own : series) block = std::max(block, block_length(own));
  // Which is the best of the traces or steps that `drawn` names, and the values of all.
  const auto judge = [&](std::span<const int64_t> drawn) {
    std::vector<double> values, own(drawn.size());
    for (const std::vector<double>& setting : series) {
      for (size_t k = 0; k < own.size(); ++k) own[k] = setting[drawn[k]];
      values.push_back(steps ? criterion.fold(own) : estimate(own, units, criterion.scale()).value);
    }
    const std::vector<bool> found = best_of(values, ranked, criterion.more_is_better);
    const std::vector<bool>& from = contains(found, true) ? found : ranked;
    const bool as_usual = usual >= 0 && found[usual];
    const size_t best = as_usual ? usual : std::ranges::find(from, true) - from.begin();
    return std::pair(best, values);
  };
  const auto all = ascending<int64_t>(std::ssize(series.front()));
  const auto [best, values] = judge(all);
  const size_t other = usual < 0 ? best : static_cast<size_t>(usual);
  const double sign = criterion.more_is_better ? 1 : -1;
  BestSetting result{.best = best, .value = values[best]};
  std::vector<double> resampled, gains;
  int64_t won = 0;
  if (!all.empty())
    resample(std::ssize(all), units, block, seed, [&](std::span<const int64_t> drawn) {
      const auto [first, drawn_values] = judge(drawn);
      won += first == best;
      resampled.push_back(drawn_values[best]);
      gains.push_back(sign * (drawn_values[best] - drawn_values[other]));
    });
  if (!all.empty()) result.chosen = static_cast<double>(won) / std::ssize(resampled);
  const bool percentiles = steps && criterion.over == Fold::worst;
  const bool root = steps && criterion.over == Fold::rms;
  const auto scaled = [&](size_t setting, double slope) {
    std::vector<double> numbers = series[setting];
    for (double& x : numbers) x *= root ? x * slope : slope;
    return numbers;
  };
  const auto interval_of = [](const std::vector<double>& numbers) {
    return Interval{percentile(numbers, 2.5), percentile(numbers, 97.5)};
  };
  result.interval = percentiles
                        ? interval_of(resampled)
                        : estimate(defined(scaled(best, 1)), units, criterion.scale()).interval;
  if (root) result.interval = {std::sqrt(result.interval.low), std::sqrt(result.interval.high)};
  if (usual < 0) return result;
  result.usual = values[other];
  result.gain = sign * (result.value - result.usual) + 0.0;  // no -0
  // A root mean square moves with each square as this share of it does.
  const auto slope = [&](double value) { return root ? sign / std::max(2 * value, 1e-300) : sign; };
  const Bounded found = difference(scaled(best, slope(values[best])),
                                   scaled(other, slope(values[other])), units, Scale::plain);
  const double moved = result.gain - found.value;
  result.gain_interval = percentiles
                             ? interval_of(gains)
                             : Interval{found.interval.low + moved, found.interval.high + moved};
  return result;
}

}  // namespace kvsim
