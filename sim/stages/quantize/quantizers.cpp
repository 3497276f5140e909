#include <Eigen/QR>
#include <numbers>

#include "sim/core/numbers.hpp"
#include "sim/stages/quantize/number_format.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::keys {

const Declare quant_residual("quant_residual", "count >= 0 entries", "128",
                             "newest kept entries that stay as they are; 0: none");

}  // namespace kvsim::keys

namespace kvsim {
namespace {

Eigen::MatrixXf sylvester(int64_t size) {
  const int64_t block = size & -size;  // the largest power of two that divides it
  const float scale = 1 / std::sqrt(static_cast<float>(block));
  Eigen::MatrixXf made = Eigen::MatrixXf::Zero(size, size);
  for (int64_t first = 0; first < size; first += block)
    for (int64_t r = 0; r < block; ++r)
      for (int64_t c = 0; c < block; ++c)
        made(first + r, first + c) = std::popcount(static_cast<uint64_t>(r & c)) % 2 == 0 ? scale
                                                                                          : -scale;
  return made;
}

/// Q of a matrix of normal numbers whose R has a positive diagonal is uniform among orthogonal
/// matrices.
Eigen::MatrixXf uniform_orthogonal(int64_t size) {
  Eigen::MatrixXd normal(size, size);
  for (int64_t r = 0; r < size; ++r)
    for (int64_t c = 0; c < size; ++c) {
      const auto at = static_cast<uint64_t>(r * size + c);
      normal(r, c) = std::sqrt(-2 * std::log(1 - uniform(0, at, 0, 0))) *
                     std::cos(2 * std::numbers::pi * uniform(0, at, 1, 0));
    }
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(normal);
  const Eigen::MatrixXd whole = qr.householderQ();
  const Eigen::VectorXd signs = qr.matrixQR().diagonal().unaryExpr(
      [](double x) { return x < 0 ? -1.0 : 1.0; });
  return (whole * signs.asDiagonal()).cast<float>();
}

}  // namespace

Orthogonal::Orthogonal(Kind kind, int64_t size) {
  if (kind == Kind::hadamard) matrix_ = sylvester(size);
  if (kind == Kind::random) matrix_ = uniform_orthogonal(size);
}

void Orthogonal::multiply(std::span<float> row, bool transposed) const {
  if (matrix_.size() == 0) return;
  Eigen::Map<Eigen::VectorXf> x(row.data(), std::ssize(row));
  x = transposed ? (matrix_.transpose() * x).eval() : (matrix_ * x).eval();
}

}  // namespace kvsim

namespace kvsim::stages::quantize::quantizers {

const Declare quantize("quantize", "kind", "none", "how kept entries are rounded");
const Declare quant_bits("quant_bits", "count [1, 8] bits", "4", "bits of a quantised number");
const Declare quant_group("quant_group", "count >= 1 numbers", "32",
                          "numbers that share a step and a lowest value");

std::vector<std::string> format_names() {
  std::vector<std::string> names = {"none"};
  for (const NumberFormat* const one : number_formats()) names.push_back(one->name);
  return names;
}

/// An axis along which numbers share scales: a channel's over entries, or an entry's over channels.
enum class Axis { channel, entry };

const Declare quant_keys("quant_keys", "text format", "int4", "form in which keys are stored",
                         one_of(format_names), tested("q8_0 nvfp4 none"));
const Declare quant_values("quant_values", "text format", "int4", "form in which values are stored",
                           one_of(format_names), tested("q5_1 sphere2 none"));
const Declare quant_keys_axis("quant_keys_axis", "channel | entry", "entry",
                              "whose numbers are a line of the format, of keys");
const Declare quant_values_axis("quant_values_axis", "channel | entry", "entry",
                                "whose numbers are a line of the format, of values");
const Declare quant_keys_turn("quant_keys_turn", "none | hadamard | random", "none",
                              "orthogonal map of every key before rounding, undone behind it");
const Declare quant_values_turn("quant_values_turn", "none | hadamard | random", "none",
                                "orthogonal map of every value before rounding, undone behind it");
const Declare quant_rope("quant_rope", "after | before", "after",
                         "keys are rounded after or before their rotation by position");

int64_t quantised_entries(const Settings& settings, Axis axis, int64_t slots) {
  const int64_t residual = settings.count(keys::quant_residual);
  if (axis == Axis::entry) return std::max<int64_t>(0, slots - residual);
  return residual == 0 ? slots : slots / residual * residual;  // groups run over whole blocks
}

bool before_rope(const Settings& settings) { return settings.is(quant_rope, "before"); }

/// Calls `rounds` with keys turned back from their positions where the record asks for that.
template <class Rounds>
void in_place(const Settings& settings, const SlotNumbers& slots, const Rounds& rounds) {
  RotationMemory memory;
  const auto turn = [&](int64_t sign) {
    for (int64_t r = 0; before_rope(settings) && r < slots.k.rows(); ++r)
      memory.rotate(*slots.rope, sign * slots.positions[r], slots.k.row(r));
  };
  turn(-1);
  rounds();
  turn(1);
}

/// A form for keys or values; without a format they stay as they are.
struct Side {
  const NumberFormat* format = nullptr;
  Axis axis = Axis::entry;
  Orthogonal::Kind turn = Orthogonal::Kind::none;
};

/// Rounds the first `entries` rows in place.
void round_tensor(const Side& side, int64_t group, int64_t entries, Table<float>& x) {
  NumberFormat::Context context{.group = group};
  for (int64_t r = 0; r < entries; ++r)
    for (const float number : x.row(r))
      context.largest = std::max(context.largest, std::fabs(number));
  if (side.axis == Axis::entry) {
    for (int64_t r = 0; r < entries; ++r) side.format->round(x.row(r), context);
    return;
  }
  std::vector<float> line(entries);
  for (int64_t c = 0; c < x.columns(); ++c) {
    for (int64_t r = 0; r < std::ssize(line); ++r) line[r] = x(r, c);
    side.format->round(line, context);
    for (int64_t r = 0; r < std::ssize(line); ++r) x(r, c) = line[r];
  }
}

/// A form for keys and one for values, each along an axis.
struct TwoForms : Quantize {
  using Quantize::Quantize;
  virtual Side keys_side(const Settings& settings) const = 0;
  virtual Side values_side(const Settings& settings) const = 0;

  void apply(const Settings& settings, const SlotNumbers& slots) const override {
    round(settings, keys_side(settings), slots.k);
    round(settings, values_side(settings), slots.v);
  }
  QuantizedCount count(const Settings& settings, int64_t slots, int64_t head_dim,
                       int64_t value_dim) const override {
    QuantizedCount count;
    add(settings, keys_side(settings), slots, head_dim, count);
    add(settings, values_side(settings), slots, value_dim, count);
    return count;
  }
  std::string fault(const Settings& settings) const override {
    const Side keys = keys_side(settings), values = values_side(settings);
    const bool over_entries = (keys.format != nullptr && keys.axis == Axis::channel) ||
                              (values.format != nullptr && values.axis == Axis::channel);
    if (!over_entries || settings.count(keys::quant_residual) % settings.count(quant_group) == 0)
      return {};
    return "quant_residual as a multiple of quant_group, since groups run over entries";
  }

 private:
  static void round(const Settings& settings, const Side& side, Table<float>& x) {
    if (side.format == nullptr) return;
    const int64_t entries = quantised_entries(settings, side.axis, x.rows());
    const Orthogonal turn(side.turn, x.columns());
    for (int64_t r = 0; r < entries; ++r) turn.apply(x.row(r));
    round_tensor(side, settings.count(quant_group), entries, x);
    for (int64_t r = 0; r < entries; ++r) turn.undo(x.row(r));
  }
  static void add(const Settings& settings, const Side& side, int64_t slots, int64_t width,
                  QuantizedCount& count) {
    if (side.format == nullptr) return;
    const int64_t entries = quantised_entries(settings, side.axis, slots);
    if (entries == 0) return;
    const int64_t group = settings.count(quant_group);
    const bool over_entries = side.axis == Axis::channel;
    count.numbers += entries * width;
    count.bits += side.format->shared_bits + (over_entries
                                                  ? width * side.format->bits(entries, group)
                                                  : entries * side.format->bits(width, group));
  }
};

/// Even steps of `quant_bits`, along fixed axes.
struct EvenSteps : TwoForms {
  EvenSteps(const char* name, const char* meaning, const char* source, Axis keys, Axis values)
      : TwoForms({name, meaning, source, "quant_bits quant_group quant_residual"}), keys_(keys),
        values_(values) {}
  Side keys_side(const Settings& settings) const override { return {steps(settings), keys_}; }
  Side values_side(const Settings& settings) const override { return {steps(settings), values_}; }

 private:
  static const NumberFormat* steps(const Settings& settings) {
    return find_format("int" + settings.text(quant_bits));
  }
  Axis keys_, values_;
};

/// Forms that the record names, with an orthogonal map first where it asks for one.
struct Formats : TwoForms {
  Formats()
      : TwoForms({"formats", "keys in the form quant_keys, values in quant_values",
                  "vLLM; llama.cpp",
                  "quant_keys quant_values quant_keys_axis quant_values_axis "
                  "quant_keys_turn quant_values_turn quant_rope quant_group quant_residual"}) {}
  bool turns_keys(const Settings& settings) const override { return before_rope(settings); }
  Side keys_side(const Settings& settings) const override {
    return {find_format(settings.text(quant_keys)), settings.word<Axis>(quant_keys_axis),
            settings.word<Orthogonal::Kind>(quant_keys_turn)};
  }
  Side values_side(const Settings& settings) const override {
    return {find_format(settings.text(quant_values)), settings.word<Axis>(quant_values_axis),
            settings.word<Orthogonal::Kind>(quant_values_turn)};
  }
  void apply(const Settings& settings, const SlotNumbers& slots) const override {
    in_place(settings, slots, [&] { TwoForms::apply(settings, slots); });
  }
};
const RegisterNone<Quantize> none("kept entries stay as they are");
const bool even_steps_registered = [] {
  const auto add = [](auto... of) { Kinds<Quantize>::add(std::make_unique<EvenSteps>(of...)); };
  add("kivi", "keys per channel, values per entry", "KIVI", Axis::channel, Axis::entry);
  add("per-token", "keys and values per entry", "", Axis::entry, Axis::entry);
  add("per-channel", "keys and values per channel", "", Axis::channel, Axis::channel);
  return true;
}();

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
  auto order = ascending<int64_t>(line.count);
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
  const auto levels = levels_of(sorted, size_t{1} << settings.count(quant_bits));
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
struct KvQuant : Quantize {
  KvQuant()
      : Quantize({"kvquant", "keys per channel, values per entry, to fitted levels, outliers apart",
                  "KVQuant", "quant_bits quant_residual quant_outliers quant_rope"}) {}
  bool turns_keys(const Settings& settings) const override { return before_rope(settings); }
  void apply(const Settings& settings, const SlotNumbers& slots) const override {
    in_place(settings, slots, [&] { round(settings, slots.k, slots.v); });
  }
  static void round(const Settings& settings, Table<float>& k, Table<float>& v) {
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
    // An outlier takes 16 bits and as many for its place; so do middle and half of a line, and a
    // level.
    const int64_t outliers = head_dim * outliers_of(settings, entries) +
                             entries * outliers_of(settings, value_dim);
    const int64_t bits = settings.count(quant_bits);
    count.numbers = entries * (head_dim + value_dim);
    count.bits = (count.numbers - outliers) * bits + 32 * outliers + 32 * (head_dim + entries) +
                 2 * 16 * (int64_t{1} << bits);
    return count;
  }
};
const Register<Quantize, Formats, KvQuant> registered;

}  // namespace kvsim::stages::quantize::quantizers
