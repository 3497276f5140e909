#include "analysis/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "analysis/summary.hpp"
#include "analysis/undefined.hpp"
#include "sim/core/random.hpp"

namespace kvsim {
namespace {

constexpr uint64_t kResamples = 1000;
constexpr int64_t kBlockSteps = 16;
constexpr uint64_t kBootstrapStream = 1;  // last index of u(seed, a, b, 1)

Interval interval_of(std::vector<double> statistics) {
  return {percentile(statistics, 2.5), percentile(statistics, 97.5)};
}

int64_t draw(uint64_t seed, uint64_t resample, uint64_t index, int64_t count) {
  const double u = uniform(seed, resample, index, kBootstrapStream);
  return static_cast<int64_t>(std::floor(u * static_cast<double>(count)));
}

/// The blocks of steps that a resample consists of.
template <class Body>
void for_each_block(int64_t steps, uint64_t seed, uint64_t resample, const Body& body) {
  const int64_t block = std::min(kBlockSteps, steps);
  uint64_t index = 0;
  for (int64_t taken = 0; taken < steps; taken += block) {
    const int64_t begin = draw(seed, resample, index++, steps - block + 1);
    body(begin, begin + std::min(block, steps - taken));
  }
}

}  // namespace

std::vector<double> average_ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
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

// The distribution function has a closed form in the angle θ = arctan(t / √ν) (Abramowitz and
// Stegun 26.7.3 and 26.7.4), and is inverted by halving.
double student_quantile(int64_t freedom, double share) {
  const auto between = [&](double angle) {  // P(|t| < √ν tan θ)
    const double square = std::cos(angle) * std::cos(angle);
    const bool odd = freedom % 2 == 1;
    double term = odd ? std::cos(angle) : 1;
    double sum = 0;
    for (int64_t k = odd ? 3 : 2; k <= freedom; k += 2) {
      sum += term;
      term *= square * static_cast<double>(k - 1) / static_cast<double>(k);
    }
    return odd ? 2 / std::numbers::pi * (angle + std::sin(angle) * sum) : std::sin(angle) * sum;
  };
  double low = 0;
  double high = std::numbers::pi / 2;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (between(middle) < 2 * share - 1 ? low : high) = middle;
  }
  return std::sqrt(static_cast<double>(freedom)) * std::tan(low);
}

Interval mean_interval(std::span<const double> values) {
  if (values.size() < 2) return {kUndefined, kUndefined};
  const double centre = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - centre) * (value - centre);
  const auto freedom = static_cast<int64_t>(values.size()) - 1;
  const double error = std::sqrt(squares / static_cast<double>(freedom) /
                                 static_cast<double>(values.size()));
  const double half = student_quantile(freedom, 0.975) * error;
  return {centre - half, centre + half};
}

void resample_traces(std::span<const double> values, uint64_t seed,
                     const std::function<void(std::span<const double>)>& seen) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<double> resample(values.size());
  for (uint64_t a = 0; a < kResamples; ++a) {
    for (size_t b = 0; b < values.size(); ++b) {
      resample[b] = values[static_cast<size_t>(draw(seed, a, b, count))];
    }
    seen(resample);
  }
}

Interval bootstrap_steps(std::span<const double> values, uint64_t seed,
                         const Statistic& statistic) {
  if (values.empty()) return {kUndefined, kUndefined};
  std::vector<double> statistics;
  std::vector<double> resample;
  for (uint64_t a = 0; a < kResamples; ++a) {
    resample.clear();
    for_each_block(std::ssize(values), seed, a, [&](int64_t begin, int64_t end) {
      resample.insert(resample.end(), values.begin() + begin, values.begin() + end);
    });
    statistics.push_back(statistic(resample));
  }
  return interval_of(std::move(statistics));
}

Interval bootstrap_mean(std::span<const double> values, uint64_t seed) {
  if (values.empty()) return {kUndefined, kUndefined};
  std::vector<double> sums(values.size() + 1, 0.0);  // of the first values
  std::partial_sum(values.begin(), values.end(), sums.begin() + 1);
  std::vector<double> means;
  for (uint64_t a = 0; a < kResamples; ++a) {
    double sum = 0;
    for_each_block(std::ssize(values), seed, a, [&](int64_t begin, int64_t end) {
      sum += sums[static_cast<size_t>(end)] - sums[static_cast<size_t>(begin)];
    });
    means.push_back(sum / static_cast<double>(values.size()));
  }
  return interval_of(std::move(means));
}

}  // namespace kvsim
