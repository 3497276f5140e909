#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/aggregate/slot_statistics.hpp"
#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim {

/// sum_j weight[j] * row_j, for the aggregates whose weights are known beforehand.
class WeightedSum : public Aggregation {
 public:
  WeightedSum(std::vector<double> weights, int64_t columns)
      : weights_(std::move(weights)), sums_(static_cast<size_t>(columns), 0.0) {}

  void add(int64_t j, int64_t first, std::span<const double> part) override {
    const double w = weights_[static_cast<size_t>(j)];
    if (w == 0) return;  // an infinite score times no weight is no score
    double* const sums = sums_.data() + first;
    for (size_t c = 0; c < part.size(); ++c) sums[c] += w * part[c];
  }
  std::span<const double> weights() const override { return weights_; }
  void add_sum(std::span<const double> sum, std::span<const int64_t> /*visible*/) override {
    for (size_t c = 0; c < sum.size(); ++c) sums_[c] += sum[c];
  }
  void finish(std::span<double> out) override {
    for (size_t c = 0; c < out.size(); ++c) out[c] = sums_[c];
  }

 private:
  std::vector<double> weights_;
  std::vector<double> sums_;
};

}  // namespace kvsim

namespace kvsim::stages::aggregate::kinds {
namespace {

const Declare single_row("single_row", "count >= 0 row", "15",
                         "the one row of J that counts, 0 = oldest", tested("0 1"));
const Declare linear_newest("linear_newest", "number > 0", "1.2",
                            "weight of the newest row; the oldest has 1", tested("0.3 2.5"));

using Weights = std::vector<double>;
using Started = std::unique_ptr<Aggregation>;

Started weighted(Weights weights, int64_t columns) {
  return std::make_unique<WeightedSum>(std::move(weights), columns);
}
Weights constant(int64_t rows, double value) { return Weights(static_cast<size_t>(rows), value); }

/// Weight 1 for one row, 0 for the others.
Weights one_row(int64_t rows, int64_t row) {
  Weights weights = constant(rows, 0);
  if (rows > 0) weights[static_cast<size_t>(std::min(row, rows - 1))] = 1;
  return weights;
}

class Sum : public Aggregate {
 public:
  Sum() : Aggregate({"aggregate", "sum", "sum over the observing queries", "H2O"}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t rows,
                                        int64_t slots) const override {
    return sum_of_rows(rows, slots);
  }
};
const Register<Aggregate, Sum> sum;

/// Sums divided by M at the end, so that equal rows give exactly their value.
class MeanOfRows : public WeightedSum {
 public:
  MeanOfRows(int64_t rows, int64_t columns)
      : WeightedSum(constant(rows, 1), columns), rows_(static_cast<double>(rows)) {}
  void finish(std::span<double> out) override {
    WeightedSum::finish(out);
    if (rows_ == 0) return;
    for (double& value : out) value /= rows_;
  }

 private:
  double rows_;
};

class Mean : public Aggregate {
 public:
  Mean() : Aggregate({"aggregate", "mean", "mean over the observing queries", "SnapKV"}) {}
  Started start(const Settings&, int64_t rows, int64_t columns) const override {
    return std::make_unique<MeanOfRows>(rows, columns);
  }
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t rows,
                                        int64_t slots) const override {
    return mean_of_last_rows(1, rows, slots);
  }
};
const Register<Aggregate, Mean> mean;

class MeanVisible : public Aggregate {
 public:
  MeanVisible()
      : Aggregate({"aggregate", "mean-visible", "sum over J / number of queries that see the entry",
                   "kvpress ObservedAttention"}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t rows,
                                        int64_t slots) const override {
    return mean_of_seen_rows(rows, slots);
  }
};
const Register<Aggregate, MeanVisible> mean_visible;

class Last : public Aggregate {
 public:
  Last() : Aggregate({"aggregate", "last", "the newest row alone", "TOVA"}) {}
  Started start(const Settings&, int64_t rows, int64_t columns) const override {
    return weighted(one_row(rows, rows - 1), columns);
  }
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t, int64_t slots) const override {
    return average_of_rows(1, slots);
  }
};
const Register<Aggregate, Last> last;

class Single : public Aggregate {
 public:
  Single()
      : Aggregate({"aggregate", "single",
                   "one row alone (row `single_row`, or the newest if J is shorter)",
                   "DefensiveKV 3.2", "single_row"}) {}
  Started start(const Settings& settings, int64_t rows, int64_t columns) const override {
    return weighted(one_row(rows, settings.count(single_row)), columns);
  }
};
const Register<Aggregate, Single> single;

class Linear : public Aggregate {
 public:
  Linear()
      : Aggregate({"aggregate", "linear",
                   "mean with weights rising linearly from 1 to `linear_newest`", "PyramidInfer",
                   "linear_newest"}) {}
  Started start(const Settings& settings, int64_t rows, int64_t columns) const override {
    const double newest = settings.real(linear_newest);
    Weights weights = constant(rows, newest);
    for (int64_t k = 0; k < rows && rows > 1; ++k)
      weights[static_cast<size_t>(k)] = 1 + (newest - 1) * static_cast<double>(k) /
                                                static_cast<double>(rows - 1);
    for (double& w : weights) w /= static_cast<double>(rows);
    return weighted(std::move(weights), columns);
  }
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings& settings, int64_t rows,
                                        int64_t slots) const override {
    return mean_of_last_rows(settings.real(linear_newest), rows, slots);
  }
};
const Register<Aggregate, Linear> linear;

class EmaInverse : public Aggregate {
 public:
  EmaInverse()
      : Aggregate({"aggregate", "ema-inverse", "`ema` run from the newest row to the oldest",
                   "ReST-KV Table 13", "ema_alpha"}) {}
  Started start(const Settings& settings, int64_t rows, int64_t columns) const override {
    const double alpha = settings.real(keys::ema_alpha);
    Weights weights = constant(rows, 0);
    double past = 1;  // (1 - alpha)^j
    for (int64_t j = 0; j < rows; ++j, past *= 1 - alpha)
      weights[static_cast<size_t>(j)] = j + 1 < rows ? alpha * past : past;
    return weighted(std::move(weights), columns);
  }
};
const Register<Aggregate, EmaInverse> ema_inverse;

/// e_1 = X_1; e_k = alpha X_k + (1 - alpha) e_{k-1} (ReST-KV Eq. 9).
class Ema : public Aggregate {
 public:
  Ema()
      : Aggregate({"aggregate", "ema", "exponential moving average, newest row weighs alpha",
                   "ReST-KV Eq. 9", "ema_alpha"}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings& settings, int64_t,
                                        int64_t slots) const override {
    return average_of_rows(settings.real(keys::ema_alpha), slots);
  }
};
const Register<Aggregate, Ema> ema;
const DeclareNote ema_note(
    "aggregate=ema", "ReST-KV Eq. 9",
    "the average starts with its first row at full weight, without a correction",
    "as printed: alpha weights the newest row, the oldest keeps (1 - alpha)^(S_w - 1)");

class Max : public Aggregate {
 public:
  Max()
      : Aggregate({"aggregate", "max", "largest value over the observing queries",
                   "DefensiveKV Eq. 5"}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t, int64_t slots) const override {
    return largest_of_rows(slots);
  }
};
const Register<Aggregate, Max> max;

/// Keeps the newest row: with schedule=per-step the replay folds one row at a time.
class NewestRow : public Aggregation {
 public:
  explicit NewestRow(int64_t columns) : values_(static_cast<size_t>(columns), 0.0) {}
  void add(int64_t, int64_t first, std::span<const double> part) override {
    std::ranges::copy(part, values_.begin() + first);
  }
  void finish(std::span<double> out) override {
    for (size_t c = 0; c < out.size(); ++c) out[c] = values_[c];
  }

 private:
  std::vector<double> values_;
};

class Each : public Aggregate {
 public:
  Each()
      : Aggregate({"aggregate", "each", "every step is scored by its own row (oracle-step only)",
                   "kvsim"}) {}
  bool per_step() const override { return true; }
  bool looks_ahead() const override { return true; }
  bool at_each_step() const override { return true; }
  std::unique_ptr<Aggregation> start(const Settings&, int64_t, int64_t columns) const override {
    return std::make_unique<NewestRow>(columns);
  }
};
const Register<Aggregate, Each> each;

const Declare variance_weight("variance_weight", "number >= 0", "200",
                              "gamma: how much the variance over queries counts", tested("0 3"));

/// Running mean and squared deviations (Welford), stable for rows that hardly differ.
class MeanAndVariance : public Aggregation {
 public:
  MeanAndVariance(double weight, int64_t columns)
      : weight_(weight), mean_(static_cast<size_t>(columns), 0.0),
        squares_(static_cast<size_t>(columns), 0.0) {}
  void add(int64_t j, int64_t first, std::span<const double> part) override {
    const double rows = static_cast<double>(j + 1);
    double* const means = mean_.data() + first;
    double* const squares = squares_.data() + first;
    for (size_t c = 0; c < part.size(); ++c) {
      const double change = part[c] - means[c];
      means[c] += change / rows;
      squares[c] += change * (part[c] - means[c]);
    }
  }
  void see(int64_t j, int64_t) override { rows_ = static_cast<double>(j + 1); }
  void finish(std::span<double> out) override {
    for (size_t c = 0; c < out.size(); ++c)
      out[c] = mean_[c] + (rows_ > 1 ? weight_ * squares_[c] / (rows_ - 1) : 0);
  }

 private:
  double weight_;
  double rows_ = 0;
  std::vector<double> mean_;
  std::vector<double> squares_;
};

class MeanVariance : public Aggregate {
 public:
  MeanVariance()
      : Aggregate({"aggregate", "mean-variance", "mean + gamma * variance over the queries", "CAKE",
                   "variance_weight"}) {}
  std::unique_ptr<Aggregation> start(const Settings& settings, int64_t,
                                     int64_t columns) const override {
    return std::make_unique<MeanAndVariance>(settings.real(variance_weight), columns);
  }
};
const Register<Aggregate, MeanVariance> mean_variance;

}  // namespace
}  // namespace kvsim::stages::aggregate::kinds

namespace kvsim::keys {
const Declare power("power", "number >= 1", "4",
                    "exponent of power means: 1 is the mean, large ones the maximum",
                    tested("1 1.5 2 5"));
}  // namespace kvsim::keys

namespace kvsim::stages::aggregate::kinds {
namespace {

/// Sum of powers of what is positive.
class PowerSum : public Aggregation {
 public:
  PowerSum(double power, int64_t rows, int64_t columns)
      : power_(power), rows_(static_cast<double>(rows)), sums_(static_cast<size_t>(columns), 0.0) {}
  void add(int64_t, int64_t first, std::span<const double> part) override {
    double* const sums = sums_.data() + first;
    const auto add_all = [&](const auto& raised) {
      for (size_t c = 0; c < part.size(); ++c) sums[c] += raised(std::max(part[c], 0.0));
    };
    if (power_ == 1)
      add_all([](double x) { return x; });
    else if (power_ == 2)
      add_all([](double x) { return x * x; });
    else if (power_ == 1.5)
      add_all([](double x) { return x * std::sqrt(x); });
    else
      add_all([power = power_](double x) { return std::pow(x, power); });
  }
  void finish(std::span<double> out) override {
    const double root = 1 / power_;
    for (size_t c = 0; c < out.size(); ++c)
      out[c] = rows_ > 0 ? std::pow(sums_[c] / rows_, root) : 0;
  }

 private:
  double power_;
  double rows_;
  std::vector<double> sums_;
};

class PowerMean : public Aggregate {
 public:
  PowerMean()
      : Aggregate({"aggregate", "power-mean",
                   "(mean of X^p)^(1/p) over the queries, X below 0 as 0: between mean and max",
                   "kvsim", "power"}) {}
  std::unique_ptr<Aggregation> start(const Settings& settings, int64_t rows,
                                     int64_t columns) const override {
    return std::make_unique<PowerSum>(settings.real(keys::power), rows, columns);
  }
};
const Register<Aggregate, PowerMean> power_mean;

}  // namespace
}  // namespace kvsim::stages::aggregate::kinds
