#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace keys {

const Declare order("order", "asg | ags | sag | sga | gas | gsa", "asg",
                    "order of smooth (s), aggregate (a) and group (g)", always,
                    only_with(observes_if), lets_nest);
const Declare ema_alpha("ema_alpha", "number (0, 1]", "0.3",
                        "weight of the newest row (ReST-KV Eq. 9)", tested("0.1 0.55 1"));

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::aggregate::aggregate {
namespace {

const Declare aggregate("aggregate", "kind", "mean", "how the observing queries' rows become one",
                        only_with(scores_rows_if));

}  // namespace
}  // namespace kvsim::stages::aggregate::aggregate

namespace kvsim {

/// sum_j weight[j] * row_j, for the aggregates whose weights are known beforehand.
struct WeightedSum : Aggregation {
  WeightedSum(std::vector<double> weights, int64_t columns)
      : weights_(std::move(weights)), sums_(columns, 0.0) {}

  void add(int64_t j, int64_t first, std::span<const double> part) override {
    const double w = weights_[j];
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
Weights constant(int64_t rows, double value) { return Weights(rows, value); }

/// Weight 1 for one row, 0 for the others.
Weights one_row(int64_t rows, int64_t row) {
  Weights weights = constant(rows, 0);
  if (rows > 0) weights[std::min(row, rows - 1)] = 1;
  return weights;
}

struct Sum : Aggregate {
  Sum() : Aggregate({"aggregate", "sum", "sum over the observing queries", "H2O"}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t rows,
                                        int64_t slots) const override {
    return sum_of_rows(rows, slots);
  }
};

/// Sums divided by M at the end, so that equal rows give exactly their value.
struct MeanOfRows : WeightedSum {
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

struct Mean : Aggregate {
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

struct MeanVisible : Aggregate {
  MeanVisible()
      : Aggregate({"aggregate", "mean-visible", "sum over J / number of queries that see the entry",
                   "kvpress ObservedAttention"}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t rows,
                                        int64_t slots) const override {
    return mean_of_seen_rows(rows, slots);
  }
};

struct Last : Aggregate {
  Last() : Aggregate({"aggregate", "last", "the newest row alone", "TOVA"}) {}
  Started start(const Settings&, int64_t rows, int64_t columns) const override {
    return weighted(one_row(rows, rows - 1), columns);
  }
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t, int64_t slots) const override {
    return average_of_rows(1, slots);
  }
};

struct Single : Aggregate {
  Single()
      : Aggregate({"aggregate", "single",
                   "one row alone (row `single_row`, or the newest if J is shorter)",
                   "DefensiveKV 3.2", "single_row"}) {}
  Started start(const Settings& settings, int64_t rows, int64_t columns) const override {
    return weighted(one_row(rows, settings.count(single_row)), columns);
  }
};

struct Linear : Aggregate {
  Linear()
      : Aggregate({"aggregate", "linear",
                   "mean with weights rising linearly from 1 to `linear_newest`", "PyramidInfer",
                   "linear_newest"}) {}
  Started start(const Settings& settings, int64_t rows, int64_t columns) const override {
    const double newest = settings.real(linear_newest);
    Weights weights = constant(rows, newest);
    for (int64_t k = 0; k < rows && rows > 1; ++k)
      weights[k] = 1 + (newest - 1) * static_cast<double>(k) / static_cast<double>(rows - 1);
    for (double& w : weights) w /= static_cast<double>(rows);
    return weighted(std::move(weights), columns);
  }
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings& settings, int64_t rows,
                                        int64_t slots) const override {
    return mean_of_last_rows(settings.real(linear_newest), rows, slots);
  }
};

struct EmaInverse : Aggregate {
  EmaInverse()
      : Aggregate({"aggregate", "ema-inverse", "`ema` run from the newest row to the oldest",
                   "ReST-KV Table 13", "ema_alpha"}) {}
  Started start(const Settings& settings, int64_t rows, int64_t columns) const override {
    const double alpha = settings.real(keys::ema_alpha);
    Weights weights = constant(rows, 0);
    double past = 1;  // (1 - alpha)^j
    for (int64_t j = 0; j < rows; ++j, past *= 1 - alpha)
      weights[j] = j + 1 < rows ? alpha * past : past;
    return weighted(std::move(weights), columns);
  }
};

/// e_1 = X_1; e_k = alpha X_k + (1 - alpha) e_{k-1} (ReST-KV Eq. 9).
struct Ema : Aggregate {
  Ema()
      : Aggregate({"aggregate", "ema", "exponential moving average, newest row weighs alpha",
                   "ReST-KV Eq. 9", "ema_alpha"}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings& settings, int64_t,
                                        int64_t slots) const override {
    return average_of_rows(settings.real(keys::ema_alpha), slots);
  }
};

struct Max : Aggregate {
  Max()
      : Aggregate({"aggregate", "max", "largest value over the observing queries",
                   "DefensiveKV Eq. 5"}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t, int64_t slots) const override {
    return largest_of_rows(slots);
  }
};

/// Keeps the newest row: with schedule=per-step the replay folds one row at a time.
struct NewestRow : Aggregation {
  explicit NewestRow(int64_t columns) : values_(columns, 0.0) {}
  void add(int64_t, int64_t first, std::span<const double> part) override {
    std::ranges::copy(part, values_.begin() + first);
  }
  void finish(std::span<double> out) override {
    for (size_t c = 0; c < out.size(); ++c) out[c] = values_[c];
  }

 private:
  std::vector<double> values_;
};

struct Each : Aggregate {
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

const Declare variance_weight("variance_weight", "number >= 0", "200",
                              "gamma: how much the variance over queries counts", tested("0 3"));

/// Running mean and squared deviations (Welford), stable for rows that hardly differ.
struct MeanAndVariance : Aggregation {
  MeanAndVariance(double weight, int64_t columns)
      : weight_(weight), mean_(columns, 0.0), squares_(columns, 0.0) {}
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

struct MeanVariance : Aggregate {
  MeanVariance()
      : Aggregate({"aggregate", "mean-variance", "mean + gamma * variance over the queries", "CAKE",
                   "variance_weight"}) {}
  std::unique_ptr<Aggregation> start(const Settings& settings, int64_t,
                                     int64_t columns) const override {
    return std::make_unique<MeanAndVariance>(settings.real(variance_weight), columns);
  }
};
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
struct PowerSum : Aggregation {
  PowerSum(double power, int64_t rows, int64_t columns)
      : power_(power), rows_(static_cast<double>(rows)), sums_(columns, 0.0) {}
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

struct PowerMean : Aggregate {
  PowerMean()
      : Aggregate({"aggregate", "power-mean",
                   "(mean of X^p)^(1/p) over the queries, X below 0 as 0: between mean and max",
                   "kvsim", "power"}) {}
  std::unique_ptr<Aggregation> start(const Settings& settings, int64_t rows,
                                     int64_t columns) const override {
    return std::make_unique<PowerSum>(settings.real(keys::power), rows, columns);
  }
};
const Register<Aggregate, Sum, Mean, MeanVisible, Last, Single, Linear, EmaInverse, Ema, Max, Each,
               MeanVariance, PowerMean>
    registered;

}  // namespace
}  // namespace kvsim::stages::aggregate::kinds
