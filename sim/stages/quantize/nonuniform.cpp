#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/quantize/quantize.hpp"

namespace kvsim::stages::quantize::nonuniform {
namespace {

const Declare quant_outliers("quant_outliers", "number [0, 0.5]", "0.01",
                             "share of a channel's or entry's numbers stored as they are");

constexpr int kSteps = 50;  // of Lloyd's iteration at most

/// Numbers of one channel or entry: x[0], x[stride], ...
struct Line {
  float* x = nullptr;
  int64_t count = 0;
  int64_t stride = 1;
  float& at(int64_t i) const { return x[i * stride]; }
};

/// One line without its outliers.
struct Rounded {
  Line line;
  std::vector<int64_t> inner;  ///< indices of those that are rounded, ascending
  float middle = 0;
  float half = 0;  ///< half of their range
};

int64_t outliers_of(const Settings& settings, int64_t count) {
  return settings.decimal(quant_outliers).half_even_times(count);
}

/// Sets those furthest from the line's mean aside (equal: the earlier) and measures the rest.
Rounded set_aside(const Line& line, int64_t outliers) {
  Rounded one{.line = line, .inner = {}};
  double mean = 0;
  for (int64_t i = 0; i < line.count; ++i) mean += static_cast<double>(line.at(i));
  mean /= static_cast<double>(line.count);
  std::vector<int64_t> order(static_cast<size_t>(line.count));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](int64_t i) {
    return std::fabs(static_cast<double>(line.at(i)) - mean);
  });
  one.inner.assign(order.begin() + outliers, order.end());
  std::ranges::sort(one.inner);
  float lo = line.at(one.inner.front()), hi = lo;
  for (const int64_t i : one.inner) {
    lo = std::min(lo, line.at(i));
    hi = std::max(hi, line.at(i));
  }
  one.half = (hi - lo) / 2;
  one.middle = lo + one.half;
  return one;
}

/// Levels in [-1, 1] by Lloyd's iteration on sorted numbers, from evenly spaced quantiles; a level
/// that no number is nearest to stays. A number halfway between two goes to the lower.
std::vector<double> levels_of(const std::vector<double>& sorted, size_t count) {
  std::vector<double> sums(sorted.size() + 1, 0.0);
  std::partial_sum(sorted.begin(), sorted.end(), sums.begin() + 1);
  std::vector<double> levels;
  for (size_t k = 0; k < count; ++k)
    levels.push_back(sorted[(2 * k + 1) * (sorted.size() - 1) / (2 * count)]);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> moved = levels;
    size_t from = 0;
    for (size_t k = 0; k < count; ++k) {
      size_t to = sorted.size();
      if (k + 1 < count) {
        const double middle = (levels[k] + levels[k + 1]) / 2;
        to = static_cast<size_t>(std::ranges::upper_bound(sorted, middle) - sorted.begin());
      }
      if (to > from) moved[k] = (sums[to] - sums[from]) / static_cast<double>(to - from);
      from = std::max(from, to);
    }
    if (moved == levels) break;
    levels = std::move(moved);
  }
  return levels;
}

/// The nearest of ascending levels; halfway the lower.
double nearest(const std::vector<double>& levels, double x) {
  const auto above = std::ranges::lower_bound(levels, x);
  if (above == levels.begin()) return levels.front();
  if (above == levels.end()) return levels.back();
  return *above - x < x - *(above - 1) ? *above : *(above - 1);
}

/// Rounds the lines of one tensor with levels that they share.
void round_lines(const Settings& settings, const std::vector<Line>& lines) {
  std::vector<Rounded> all;
  std::vector<double> numbers;
  for (const Line& line : lines) {
    all.push_back(set_aside(line, outliers_of(settings, line.count)));
    const Rounded& one = all.back();
    for (const int64_t i : one.inner)
      if (one.half > 0)
        numbers.push_back(static_cast<double>((line.at(i) - one.middle) / one.half));
  }
  if (numbers.empty()) return;  // every line is constant but for its outliers
  std::vector<double> sorted = numbers;
  std::ranges::sort(sorted);
  const auto levels = levels_of(sorted, size_t{1} << settings.count(keys::quant_bits));
  size_t at = 0;
  for (const Rounded& one : all)
    for (const int64_t i : one.inner)
      if (one.half > 0)
        one.line.at(i) = one.middle + one.half * static_cast<float>(nearest(levels, numbers[at++]));
}

/// All but the newest `quant_residual` entries.
int64_t rounded_entries(const Settings& settings, int64_t slots) {
  return std::max<int64_t>(0, slots - settings.count(keys::quant_residual));
}

/// KVQuant's data type on the keys and values of one head.
class KvQuant : public Quantize {
 public:
  KvQuant()
      : Quantize({"quantize",
                  "kvquant",
                  "keys per channel, values per entry, to fitted levels, outliers apart",
                  "KVQuant",
                  {"quant_bits", "quant_residual", "quant_outliers"}}) {}
  void apply(const Settings& settings, Table<float>& k, Table<float>& v) const override {
    const int64_t entries = rounded_entries(settings, k.rows());
    if (entries == 0) return;
    std::vector<Line> channels, rows;
    for (int64_t c = 0; c < k.columns(); ++c) channels.push_back({&k(0, c), entries, k.columns()});
    for (int64_t r = 0; r < entries; ++r) rows.push_back({&v(r, 0), v.columns(), 1});
    round_lines(settings, channels);
    round_lines(settings, rows);
  }
  QuantizedCount count(const Settings& settings, int64_t slots, int64_t head_dim,
                       int64_t value_dim) const override {
    QuantizedCount count;
    const int64_t entries = rounded_entries(settings, slots);
    if (entries == 0) return count;
    count.outliers = head_dim * outliers_of(settings, entries) +
                     entries * outliers_of(settings, value_dim);
    count.numbers = entries * (head_dim + value_dim);
    count.groups = head_dim + entries;
    count.levels = 2 * (int64_t{1} << settings.count(keys::quant_bits));
    return count;
  }
};
const Register<Quantize, KvQuant> kvquant;
const DeclareNote kvquant_note_1{
    {.of = "quantize=kvquant",
     .source = "KVQuant; ReST-KV Figure 11",
     .point = "keys are rounded before their rotation, levels are fitted offline and weighted by "
              "the sensitivity of the loss",
     .reading = "keys as the trace holds them, after rotation; levels are fitted to the head's own "
                "numbers, unweighted: a trace holds neither gradients nor a calibration set"}};
const DeclareNote kvquant_note_2{
    {.of = "quantize=kvquant",
     .source = "KVQuant",
     .point = "1 % of the numbers of a vector are outliers, by percentiles from calibration",
     .reading = "the share of `quant_outliers` furthest from the vector's mean, a vector being a "
                "channel's or an entry's numbers in one head"}};

}  // namespace
}  // namespace kvsim::stages::quantize::nonuniform
