#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/quantize/quantize.hpp"

namespace kvsim {
namespace keys {

const Declare quant_bits("quant_bits", "count [1, 8] bits", "4", "bits of a quantised number");
const Declare quant_residual("quant_residual", "count >= 0 entries", "128",
                             "newest kept entries that stay as they are; 0: none");

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::quantize::quantizers {
namespace {

const Declare quantize("quantize", "kind", "none", "how kept entries are rounded");
const Declare quant_group("quant_group", "count >= 1 numbers", "32",
                          "numbers that share a step and a lowest value");

/// Rounds `count` numbers at values[0], values[stride], ... as one group.
void round_group(float* values, int64_t count, int64_t stride, int64_t bits) {
  float lo = values[0];
  float hi = values[0];
  for (int64_t x = 1; x < count; ++x) {
    lo = std::min(lo, values[x * stride]);
    hi = std::max(hi, values[x * stride]);
  }
  const auto top = static_cast<float>((1 << bits) - 1);
  const float step = (hi - lo) / top;
  for (int64_t x = 0; x < count; ++x) {
    float& value = values[x * stride];
    if (hi == lo || step == 0) {
      value = lo;
      continue;
    }
    const float code = std::clamp(std::nearbyint((value - lo) / step), 0.0f, top);
    value = lo + code * step;
  }
}

/// Groups of consecutive entries, one channel at a time, over the first `entries` rows.
void round_per_channel(Table<float>& x, int64_t entries, int64_t group, int64_t bits) {
  for (int64_t first = 0; first < entries; first += group) {
    for (int64_t c = 0; c < x.columns(); ++c) {
      round_group(&x(first, c), std::min(group, entries - first), x.columns(), bits);
    }
  }
}

/// Groups of consecutive channels, one entry at a time, over the first `entries` rows.
void round_per_entry(Table<float>& x, int64_t entries, int64_t group, int64_t bits) {
  for (int64_t r = 0; r < entries; ++r) {
    for (int64_t c = 0; c < x.columns(); c += group) {
      round_group(&x(r, c), std::min(group, x.columns() - c), 1, bits);
    }
  }
}

int64_t groups_of(int64_t length, int64_t group) { return (length + group - 1) / group; }

/// Entries of `slots` that are quantised when groups run over entries: whole residual blocks.
int64_t whole_blocks(const Settings& settings, int64_t slots) {
  const int64_t residual = settings.count(keys::quant_residual);
  return residual == 0 ? slots : slots / residual * residual;
}

/// Entries that are quantised when groups run over channels: all but the newest.
int64_t all_but_newest(const Settings& settings, int64_t slots) {
  return std::max<int64_t>(0, slots - settings.count(keys::quant_residual));
}

enum class Axis { channel, entry };

int64_t quantised_entries(const Settings& settings, Axis axis, int64_t slots) {
  return axis == Axis::channel ? whole_blocks(settings, slots) : all_but_newest(settings, slots);
}

void round_tensor(const Settings& settings, Axis axis, Table<float>& x) {
  const int64_t entries = quantised_entries(settings, axis, x.rows());
  const auto round = axis == Axis::channel ? round_per_channel : round_per_entry;
  round(x, entries, settings.count(quant_group), settings.count(keys::quant_bits));
}

void count_tensor(const Settings& settings, Axis axis, int64_t slots, int64_t width,
                  QuantizedCount& count) {
  const int64_t entries = quantised_entries(settings, axis, slots);
  const int64_t group = settings.count(quant_group);
  count.numbers += entries * width;
  count.groups += axis == Axis::channel ? groups_of(entries, group) * width
                                        : groups_of(width, group) * entries;
}

const std::vector<std::string> kKeys = {"quant_bits", "quant_group", "quant_residual"};

class NoQuantize : public Quantize {
 public:
  NoQuantize() : Quantize({"quantize", "none", "kept entries stay as they are", ""}) {}
  bool changes_entries() const override { return false; }
  void apply(const Settings&, Table<float>&, Table<float>&) const override {}
  QuantizedCount count(const Settings&, int64_t, int64_t, int64_t) const override { return {}; }
};
const Register<Quantize, NoQuantize> none;

/// Uniform rounding with one axis for keys and one for values.
class AxisQuantize : public Quantize {
 public:
  AxisQuantize(KindInfo info, Axis keys, Axis values)
      : Quantize(std::move(info)), keys_(keys), values_(values) {}
  void apply(const Settings& settings, Table<float>& k, Table<float>& v) const override {
    round_tensor(settings, keys_, k);
    round_tensor(settings, values_, v);
  }
  QuantizedCount count(const Settings& settings, int64_t slots, int64_t head_dim,
                       int64_t value_dim) const override {
    QuantizedCount count;
    count_tensor(settings, keys_, slots, head_dim, count);
    count_tensor(settings, values_, slots, value_dim, count);
    return count;
  }
  std::string fault(const Settings& settings) const override {
    const bool over_entries = keys_ == Axis::channel || values_ == Axis::channel;
    if (!over_entries || settings.count(keys::quant_residual) % settings.count(quant_group) == 0) {
      return {};
    }
    return "quant_residual as a multiple of quant_group, since groups run over entries";
  }

 private:
  Axis keys_;
  Axis values_;
};

class Kivi : public AxisQuantize {
 public:
  Kivi()
      : AxisQuantize({"quantize", "kivi", "keys per channel, values per entry", "KIVI", kKeys},
                     Axis::channel, Axis::entry) {}
};
const Register<Quantize, Kivi> kivi;

class PerToken : public AxisQuantize {
 public:
  PerToken()
      : AxisQuantize({"quantize", "per-token", "keys and values per entry", "", kKeys}, Axis::entry,
                     Axis::entry) {}
};
const Register<Quantize, PerToken> per_token;

class PerChannel : public AxisQuantize {
 public:
  PerChannel()
      : AxisQuantize({"quantize", "per-channel", "keys and values per channel", "", kKeys},
                     Axis::channel, Axis::channel) {}
};
const Register<Quantize, PerChannel> per_channel;

}  // namespace
}  // namespace kvsim::stages::quantize::quantizers

namespace kvsim {

const Quantize& quantizer(const Settings& settings) { return chosen<Quantize>(settings); }

}  // namespace kvsim

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
      : Quantize({"quantize", "kvquant",
                  "keys per channel, values per entry, to fitted levels, outliers apart", "KVQuant",
                  "quant_bits quant_residual quant_outliers"}) {}
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
const DeclareNote kvquant_note_1(
    "quantize=kvquant", "KVQuant; ReST-KV Figure 11",
    "keys are rounded before their rotation, levels are fitted offline and weighted by the "
    "sensitivity of the loss",
    "keys as the trace holds them, after rotation; levels are fitted to the head's own numbers, "
    "unweighted: a trace holds neither gradients nor a calibration set");
const DeclareNote kvquant_note_2(
    "quantize=kvquant", "KVQuant",
    "1 % of the numbers of a vector are outliers, by percentiles from calibration",
    "the share of `quant_outliers` furthest from the vector's mean, a vector being a channel's or "
    "an entry's numbers in one head");

}  // namespace
}  // namespace kvsim::stages::quantize::nonuniform
