#include "analysis/statistics.hpp"

#include <boost/math/distributions/students_t.hpp>
#include <numbers>

#include "sim/core/numbers.hpp"

namespace kvsim {
namespace {

constexpr int64_t kManyValues = int64_t{1} << 14;
constexpr int kBucketBits = 14;  // sign, exponent and two bits of the mantissa

/// Of many values those near rank `rank`: two passes without a branch on a value, where selection
/// mispredicts one for each. Returns the rank of the same value among those that stay; the one
/// after it stays, too.
int64_t keep_near(std::vector<double>& values, int64_t rank) {
  const auto bucket = [](double value) {
    return static_cast<size_t>(sortable_bits(value) >> (64 - kBucketBits));
  };
  std::vector<int64_t> count(size_t{1} << kBucketBits, 0);
  for (const double value : values) ++count[bucket(value)];
  size_t first = 0;
  int64_t before = 0;
  while (before + count[first] <= rank) before += count[first++];
  size_t last = first;
  const int64_t wanted = std::min(rank + 2, std::ssize(values));
  for (int64_t held = before + count[first]; held < wanted;) held += count[++last];
  std::erase_if(values, [&](double value) {
    const size_t own = bucket(value);
    return own < first || own > last;
  });
  return rank - before;
}

constexpr double kLevel = 0.95;
constexpr uint64_t kResamples = 1000;
constexpr uint64_t kBootstrapStream = 1;  // last index of u(seed, a, b, 1)
constexpr double kLeast = 1e-12;          // of a logarithm: nothing is lost

using Student = boost::math::students_t_distribution<double>;

/// The ends of an interval about `value` on a scale, `error` being the standard error of a mean.
Interval around(double value, double error, double freedom, Scale scale) {
  if (!(freedom > 0) || std::isnan(error)) return {kUndefined, kUndefined};
  const double half = student_quantile(freedom, (1 + kLevel) / 2) * error;
  if (half == 0) return {value, value};
  if (scale == Scale::plain) return {value - half, value + half};
  if (scale == Scale::log) return {value * std::exp(-half / value), value * std::exp(half / value)};
  if (scale == Scale::count) {
    const double root = std::sqrt(std::max(kLeast, value));
    const double low = std::max(0.0, root - half / (2 * root));
    return {low * low, std::pow(root + half / (2 * root), 2)};
  }
  // The slope of arcsin(sqrt(x)); where it is infinite nothing varies.
  const double slope = 0.5 / std::sqrt(std::max(kLeast, value * (1 - value)));
  const double angle = std::asin(std::sqrt(std::clamp(value, 0.0, 1.0)));
  const auto share = [&](double at) {
    const double sine = std::sin(std::clamp(at, 0.0, std::numbers::pi / 2));
    return sine * sine;
  };
  return {share(angle - half * slope), share(angle + half * slope)};
}

double chance_of(double distance, double error, double freedom) {
  if (!(freedom > 0) || std::isnan(error)) return kUndefined;
  if (error == 0) return distance == 0 ? 1 : 0;
  return 2 *
         boost::math::cdf(boost::math::complement(Student(freedom), std::abs(distance) / error));
}

/// Standard error of a mean and its degrees of freedom.
struct Error {
  double error, freedom;
};

Error error_of(std::span<const double> values, Units units) {
  const auto count = static_cast<double>(values.size());
  if (units == Units::steps) {
    const int64_t block = block_length(values);
    return {block_error(values, block), count / static_cast<double>(block) - 1};
  }
  const double centre = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - centre) * (value - centre);
  return {std::sqrt(squares / (count - 1) / count), count - 1};
}

std::vector<double> logarithms(std::span<const double> values) {
  std::vector<double> logs;
  for (const double value : values) logs.push_back(std::log(std::max(kLeast, value)));
  return logs;
}

bool none_positive(std::span<const double> values) {
  return std::ranges::none_of(values, [](double value) { return value > 0; });
}

/// Geometric mean over traces.
Bounded over_logs(const std::vector<double>& logs) {
  const double centre = mean(logs);
  const auto [error, freedom] = error_of(logs, Units::traces);
  const Interval ends = around(centre, error, freedom, Scale::plain);
  return {std::exp(centre),
          {std::exp(ends.low), std::exp(ends.high)},
          chance_of(centre, error, freedom)};
}

}  // namespace

std::vector<double> defined(std::span<const double> values) {
  std::vector<double> kept;
  kept.reserve(values.size());
  std::copy_if(values.begin(), values.end(), std::back_inserter(kept),
               [](double value) { return !std::isnan(value); });
  return kept;
}

double mean(std::span<const double> values) {
  const std::vector<double> kept = defined(values);
  if (kept.empty()) return kUndefined;
  double sum = 0;
  for (const double value : kept) sum += value;
  return sum / static_cast<double>(kept.size());
}

double root_mean_square(std::span<const double> values) {
  std::vector<double> squares(values.begin(), values.end());
  for (double& value : squares) value *= value;
  return std::sqrt(mean(squares));
}

double minimum(std::span<const double> values) {
  const std::vector<double> kept = defined(values);
  return kept.empty() ? kUndefined : *std::min_element(kept.begin(), kept.end());
}

double maximum(std::span<const double> values) {
  const std::vector<double> kept = defined(values);
  return kept.empty() ? kUndefined : *std::max_element(kept.begin(), kept.end());
}

double percentile(std::span<const double> values, double p) {
  std::vector<double> kept = defined(values);
  if (kept.empty()) return kUndefined;
  const double rank = p / 100 * static_cast<double>(kept.size() - 1);
  auto whole = static_cast<int64_t>(std::floor(rank));
  const double part = rank - static_cast<double>(whole);
  if (std::ssize(kept) > kManyValues) whole = keep_near(kept, whole);
  const auto at = kept.begin() + whole;
  std::nth_element(kept.begin(), at, kept.end());
  const double below = *at;
  if (part == 0) return below;
  const double above = *std::min_element(at + 1, kept.end());
  // Written so that equal (also infinite) neighbours give themselves.
  return below == above ? below : below + part * (above - below);
}

std::vector<double> average_ranks(std::span<const double> values) {
  auto order = ascending<size_t>(std::ssize(values));
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double shared = static_cast<double>(begin + 1 + end) / 2;
    for (size_t k = begin; k < end; ++k) ranks[order[k]] = shared;
    begin = end;
  }
  return ranks;
}

double pearson(std::span<const double> x, std::span<const double> y) {
  if (x.size() < 2) return kUndefined;
  const double x_mean = mean(x);
  const double y_mean = mean(y);
  double xx = 0;
  double yy = 0;
  double xy = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    xx += (x[k] - x_mean) * (x[k] - x_mean);
    yy += (y[k] - y_mean) * (y[k] - y_mean);
    xy += (x[k] - x_mean) * (y[k] - y_mean);
  }
  return xx == 0 || yy == 0 ? kUndefined : xy / std::sqrt(xx * yy);
}

double spearman(std::span<const double> x, std::span<const double> y) {
  return pearson(average_ranks(x), average_ranks(y));
}

double student_quantile(double freedom, double share) {
  return boost::math::quantile(Student(freedom), share);
}

int64_t block_length(std::span<const double> series) {
  const int64_t count = std::ssize(series);
  if (count < 3) return 1;
  const auto n = static_cast<double>(count);
  const double centre = mean(series);
  const auto at = [&](int64_t t) { return series[t] - centre; };
  const auto products = [&](int64_t lag) {  // of what is `lag` steps apart, and of either part
    std::array<double, 3> sums{};
    for (int64_t t = lag; t < count; ++t) sums[0] += at(t) * at(t - lag);
    for (int64_t t = lag + 1; t < count; ++t) {  // as arch has them, one less
      sums[1] += at(t) * at(t);
      sums[2] += at(t - lag - 1) * at(t - lag - 1);
    }
    return sums;
  };
  // The first lag after which `quiet` correlations in a row are no larger than chance makes them.
  const int64_t quiet = std::max<int64_t>(5, static_cast<int64_t>(std::log10(n)));
  const int64_t most = std::min(count - 1, static_cast<int64_t>(std::ceil(std::sqrt(n))) + quiet);
  const double usual = 2 * std::sqrt(std::log10(n) / n);
  std::vector<double> covariances;
  int64_t last = -1;
  int64_t in_row = 0;
  for (int64_t lag = 0; lag <= most; ++lag) {
    const auto [both, first, second] = products(lag);
    covariances.push_back(both / n);
    if (lag == 0) continue;
    const double correlation = first > 0 && second > 0 ? both / std::sqrt(first * second) : 0;
    in_row = std::abs(correlation) < usual ? in_row + 1 : 0;
    if (last < 0 && in_row == quiet && lag < most) last = lag - quiet + 1;
  }
  if (!(covariances[0] > 0)) return 1;
  const int64_t window = last < 0 ? most : std::min(most, 2 * std::max<int64_t>(1, last));
  // A flat-top window: 1 up to half of it, then down to 0.
  double slope = 0;
  double density = covariances[0];
  for (int64_t lag = 1; lag <= window; ++lag) {
    const double along = static_cast<double>(lag) / static_cast<double>(window);
    const double weight = along <= 0.5 ? 1 : 2 * (1 - along);
    const double part = 2 * weight * covariances[lag];
    slope += part * static_cast<double>(lag);
    density += part;
  }
  const double longest = std::ceil(std::min(3 * std::sqrt(n), n / 3));
  const double best = std::cbrt(1.5 * slope * slope / (density * density) * n);
  return static_cast<int64_t>(std::ceil(std::clamp(best, 1.0, longest)));
}

double block_error(std::span<const double> series, int64_t block) {
  const int64_t count = std::ssize(series);
  const double centre = mean(series);
  double sum = 0;  // of the block that begins at step t, less the mean
  for (int64_t t = 0; t < block; ++t) sum += series[t % count] - centre;
  double squares = 0;
  for (int64_t t = 0; t < count; ++t) {
    squares += sum * sum;
    sum += series[(t + block) % count] - series[t];
  }
  const auto n = static_cast<double>(count);
  return std::sqrt(squares / n / static_cast<double>(block) / n);
}

Bounded estimate(std::span<const double> values, Units units, Scale scale) {
  if (values.empty()) return {kUndefined, {kUndefined, kUndefined}, kUndefined};
  if (scale == Scale::log && none_positive(values)) scale = Scale::plain;
  if (scale == Scale::log && units == Units::traces) return over_logs(logarithms(values));
  const double centre = mean(values);
  const auto [error, freedom] = error_of(values, units);
  return {centre, around(centre, error, freedom, scale), chance_of(centre, error, freedom)};
}

Bounded paired(std::span<const double> values, std::span<const double> others, Units units,
               Scale scale) {
  if (values.empty()) return {kUndefined, {kUndefined, kUndefined}, kUndefined};
  std::vector<double> differences(values.size());
  const auto subtract =
      [&](std::span<const double> a, double a_share, std::span<const double> b, double b_share) {
    for (size_t k = 0; k < a.size(); ++k) differences[k] = a[k] * a_share - b[k] * b_share;
  };
  if (scale != Scale::log) {
    subtract(values, 1, others, 1);
    return estimate(differences, units, Scale::plain);
  }
  if (units == Units::traces) {
    subtract(logarithms(values), 1, logarithms(others), 1);
    return over_logs(differences);
  }
  const double one = std::max(kLeast, mean(values));
  const double other = std::max(kLeast, mean(others));
  // The ratio's logarithm moves with each step as these differences do.
  subtract(values, 1 / one, others, 1 / other);
  const auto [error, freedom] = error_of(differences, units);
  const double log = std::log(one / other);
  const Interval ends = around(log, error, freedom, Scale::plain);
  return {one / other, {std::exp(ends.low), std::exp(ends.high)}, chance_of(log, error, freedom)};
}

void resample(int64_t count, Units units, int64_t block, uint64_t seed,
              const std::function<void(std::span<const int64_t>)>& seen) {
  if (units == Units::traces) block = 1;
  std::vector<int64_t> drawn(count);
  for (uint64_t a = 0; a < kResamples; ++a) {
    uint64_t index = 0;
    for (int64_t taken = 0; taken < count; taken += block) {
      const double u = uniform(seed, a, index++, kBootstrapStream);
      const auto begin = static_cast<int64_t>(std::floor(u * static_cast<double>(count)));
      for (int64_t t = taken; t < std::min(count, taken + block); ++t)
        drawn[t] = (begin + t - taken) % count;
    }
    seen(drawn);
  }
}

}  // namespace kvsim
