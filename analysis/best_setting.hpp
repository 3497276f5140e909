#pragma once
#include "analysis/statistics.hpp"

namespace kvsim {

/// How several values of a measure become one; worst: the least, or the most where less is better.
enum class Fold { mean, worst, rms };

/// Criterion by which one setting beats another: a measure per step, or per layer and step, folded
/// over the layers and then over the steps.
struct Criterion {
  std::string variable;
  Fold over = Fold::mean;
  bool more_is_better = true;

  double fold(std::span<const double> values) const;  ///< NaN is left out
  /// Of the values: errors are on logarithms, importance is a share.
  Scale scale() const { return more_is_better ? Scale::share : Scale::log; }
};

/// The criteria that settings can be judged by: the measure that predicts best what a model loses
/// (studies/prediction.md) first.
const std::vector<Criterion>& criteria();
/// Their measures, each once: what `kvsim sweep --metric` takes.
std::vector<std::string> judged_measures();
/// Columns of the table of best settings unless others are asked for, of those in `measured`:
/// stream error, or output error where there is none, and the papers' retained importance.
std::vector<std::string> usual_measures(const std::vector<std::string>& measured);

/// One setting at one budget: per trace, the values of the steps, folded over the layers.
using SettingSeries = std::vector<std::vector<double>>;

/// The best of several settings with 95 % intervals (metrics.md 6): Student's over traces when
/// there are at least two, else over circular blocks of steps.
struct BestSetting {
  size_t best = 0;            ///< index; among equals the default, else the first
  double value = kUndefined;  ///< mean over traces of the criterion; of errors the geometric mean
  Interval interval = {kUndefined, kUndefined};
  double usual = kUndefined;  ///< value of the default setting; NaN when there is none
  double gain =
      kUndefined;  ///< improvement over the default, > 0 is better; NaN when there is none
  Interval gain_interval = {kUndefined, kUndefined};  ///< paired, on the same traces or steps
  double chosen = kUndefined;  ///< share of resamples in which it is the best, too
};

/// `settings` is not empty and all have the same traces; `usual`: index of the default, or -1.
/// `ranked` [setting]: those that may be the best, at least one; empty: all.
BestSetting best_setting(const std::vector<SettingSeries>& settings, int usual,
                         const Criterion& criterion, uint64_t seed, std::vector<bool> ranked = {});

}  // namespace kvsim
