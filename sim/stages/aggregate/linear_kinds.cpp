#include <algorithm>
#include <cmath>

#include "sim/stages/aggregate/slot_statistics.hpp"
#include "sim/stages/aggregate/weighted_sum.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::stages::aggregate::linear_kinds {
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
  Sum() : Aggregate({"aggregate", "sum", "sum over the observing queries", "H2O", {}}) {}
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
  Mean() : Aggregate({"aggregate", "mean", "mean over the observing queries", "SnapKV", {}}) {}
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
      : Aggregate({"aggregate",
                   "mean-visible",
                   "sum over J / number of queries that see the entry",
                   "kvpress ObservedAttention",
                   {}}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t rows,
                                        int64_t slots) const override {
    return mean_of_seen_rows(rows, slots);
  }
};
const Register<Aggregate, MeanVisible> mean_visible;

class Last : public Aggregate {
 public:
  Last() : Aggregate({"aggregate", "last", "the newest row alone", "TOVA", {}}) {}
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
      : Aggregate({"aggregate",
                   "single",
                   "one row alone (row `single_row`, or the newest if J is "
                   "shorter)",
                   "DefensiveKV 3.2",
                   {"single_row"}}) {}
  Started start(const Settings& settings, int64_t rows, int64_t columns) const override {
    return weighted(one_row(rows, settings.count(single_row)), columns);
  }
};
const Register<Aggregate, Single> single;

class Linear : public Aggregate {
 public:
  Linear()
      : Aggregate({"aggregate",
                   "linear",
                   "mean with weights rising linearly from 1 to "
                   "`linear_newest`",
                   "PyramidInfer",
                   {"linear_newest"}}) {}
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
      : Aggregate({"aggregate",
                   "ema-inverse",
                   "`ema` run from the newest row to the oldest",
                   "ReST-KV Table 13",
                   {"ema_alpha"}}) {}
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

}  // namespace
}  // namespace kvsim::stages::aggregate::linear_kinds
