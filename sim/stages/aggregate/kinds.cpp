#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim {
namespace keys {

const Declare order("order", "asg | ags | sag | sga | gas | gsa", "asg",
                    "order of smooth (s), aggregate (a) and group (g)", always,
                    only_with(observes_if), lets_nest);
const Declare ema_alpha("ema_alpha", "number (0, 1]", "0.3",
                        "weight of the newest row (ReST-KV Eq. 9)", tested("0.1 0.55 1"));
const Declare power("power", "number >= 1", "4",
                    "exponent of power means: 1 is the mean, large ones the maximum",
                    tested("1 1.5 2 5"));

}  // namespace keys

namespace {

/// Weighted mean of two values, with the second replaced by it.
void average_into(double from, double& into, double weight_from, double weight_into) {
  into = (weight_from * from + weight_into * into) / (weight_from + weight_into);
}

/// Statistic through the sum of the rows alone: all have weight 1.
struct Summed : SlotStatistic {
  Summed(int64_t rows, int64_t slots) : weights_(rows, 1.0), sum_(slots, 0.0) {}
  void add(int64_t, int64_t first, std::span<const double> part) override {
    double* const sum = sum_.data() + first;
    for (size_t s = 0; s < part.size(); ++s) sum[s] += part[s];
  }
  std::span<const double> weights() const override { return weights_; }
  void add_sum(std::span<const double> sum, std::span<const int64_t>) override {
    Summed::add(0, 0, sum);
  }
  double score(int64_t slot) const override { return sum_[slot]; }
  void finish(std::span<double> out) override { std::ranges::copy(sum_, out.begin()); }
  void append() override { sum_.push_back(0); }
  void erase(std::span<const int64_t> slots) override { erase_rows(sum_, 1, slots); }
  void merge(int64_t from, int64_t into, double, double) override { sum_[into] += sum_[from]; }

 protected:
  std::vector<double> weights_;
  std::vector<double> sum_;
};

/// Sum over the rows that saw the slot, divided by their number.
struct MeanOfSeen : Summed {
  MeanOfSeen(int64_t rows, int64_t slots) : Summed(rows, slots), seen_(slots, 0.0) {}
  void see(int64_t j, int64_t visible) override {
    visible_.resize(std::max(visible_.size(), static_cast<size_t>(j) + 1), 0);
    visible_[j] = visible;
  }
  void add(int64_t j, int64_t first, std::span<const double> part) override {
    Summed::add(j, first, part);
    const int64_t seen = std::clamp<int64_t>(visible_[j] - first, 0, std::ssize(part));
    for (int64_t s = first; s < first + seen; ++s) ++seen_[s];
  }
  void add_sum(std::span<const double> sum, std::span<const int64_t> visible) override {
    std::vector<double> first(seen_.size() + 1, 0.0);  // rows that see no more than s columns
    for (const int64_t columns : visible) ++first[columns];
    auto rows = static_cast<double>(visible.size());
    for (size_t s = 0; s < sum.size(); ++s) {
      rows -= first[s];
      sum_[s] += sum[s];
      seen_[s] += rows;
    }
  }
  double score(int64_t slot) const override {
    return seen_[slot] > 0 ? sum_[slot] / seen_[slot] : 0;
  }
  void finish(std::span<double> out) override { SlotStatistic::finish(out); }
  void append() override {
    Summed::append();
    seen_.push_back(0);
  }
  void erase(std::span<const int64_t> slots) override {
    Summed::erase(slots);
    erase_rows(seen_, 1, slots);
  }
  void merge(int64_t from, int64_t into, double weight_from, double weight_into) override {
    double mean = score(into);
    average_into(score(from), mean, weight_from, weight_into);
    sum_[into] = mean * seen_[into];
  }

 private:
  std::vector<double> seen_;      // rows that saw the slot
  std::vector<int64_t> visible_;  // of each row
};

/// sqrt(mean of squares - square of mean) over the rows that saw the slot.
struct DeviationOfSeen : SlotStatistic {
  explicit DeviationOfSeen(int64_t slots) : mean_(0, slots), squares_(0, slots) {}
  void see(int64_t j, int64_t visible) override {
    mean_.see(j, visible);
    squares_.see(j, visible);
  }
  void add(int64_t j, int64_t first, std::span<const double> part) override {
    mean_.add(j, first, part);
    std::vector<double> squares(part.begin(), part.end());
    for (double& x : squares) x *= x;
    squares_.add(j, first, squares);
  }
  double score(int64_t slot) const override {
    const double mean = mean_.score(slot);
    return std::sqrt(std::max(0.0, squares_.score(slot) - mean * mean));
  }
  void append() override {
    mean_.append();
    squares_.append();
  }
  void erase(std::span<const int64_t> slots) override {
    mean_.erase(slots);
    squares_.erase(slots);
  }
  void merge(int64_t from, int64_t into, double weight_from, double weight_into) override {
    mean_.merge(from, into, weight_from, weight_into);
    squares_.merge(from, into, weight_from, weight_into);
  }

 private:
  MeanOfSeen mean_;
  MeanOfSeen squares_;
};

/// Statistic that starts with a slot's first row and is then updated from row to row.
template <class Update>
struct Recursive : SlotStatistic {
  Recursive(Update update, int64_t slots)
      : update_(update), value_(slots, 0.0), started_(slots, 0.0) {}
  void add(int64_t, int64_t first, std::span<const double> part) override {
    double* const value = value_.data() + first;
    double* const started = started_.data() + first;
    for (size_t s = 0; s < part.size(); ++s) {
      value[s] = started[s] > 0 ? update_(value[s], part[s]) : part[s];
      started[s] = 1;
    }
  }
  double score(int64_t slot) const override { return value_[slot]; }
  void finish(std::span<double> out) override { std::ranges::copy(value_, out.begin()); }
  void append() override {
    value_.push_back(0);
    started_.push_back(0);
  }
  void erase(std::span<const int64_t> slots) override {
    erase_rows(value_, 1, slots);
    erase_rows(started_, 1, slots);
  }
  void merge(int64_t from, int64_t into, double weight_from, double weight_into) override {
    average_into(score(from), value_[into], weight_from, weight_into);
  }

 private:
  Update update_;
  std::vector<double> value_;
  std::vector<double> started_;
};

struct Larger {
  double operator()(double past, double row) const { return std::max(past, row); }
};
struct Average {
  double alpha;
  double operator()(double past, double row) const {
    return alpha == 1 ? row : alpha * row + (1 - alpha) * past;
  }
};

/// Keeps the last rows of each slot in a ring, so that a row costs O(1) per slot; sums are made
/// anew whenever the ring has gone round, so that roundings do not pile up.
struct MeanOfLast : SlotStatistic {
  MeanOfLast(double newest, int64_t rows, int64_t slots)
      : rows_(std::max<int64_t>(rows, 1)), newest_(newest),
        slope_(rows > 1 ? (newest - 1) / static_cast<double>(rows - 1) : 0),
        slots_(slots, Slot{std::vector<double>(rows_, 0.0), 0, 0}) {}

  /// All slots at once: the ring goes on with the row.
  void add(int64_t, int64_t /*first*/, std::span<const double> row) override {
    for (size_t s = 0; s < row.size(); ++s) {
      Slot& slot = slots_[s];
      const double oldest = slot.ring[at_];
      const double others = slot.sum - oldest;
      slot.weighted = rows_ == 1 ? newest_ * row[s]
                                 : slot.weighted - oldest - slope_ * others + newest_ * row[s];
      slot.sum = others + row[s];
      slot.ring[at_] = row[s];
    }
    at_ = (at_ + 1) % rows_;
    if (at_ == 0)
      for (Slot& slot : slots_) sum_anew(slot);
  }
  double score(int64_t slot) const override {
    return slots_[slot].weighted / static_cast<double>(rows_);
  }
  void append() override { slots_.push_back({std::vector<double>(rows_, 0.0), 0, 0}); }
  void erase(std::span<const int64_t> slots) override { erase_rows(slots_, 1, slots); }
  void merge(int64_t from, int64_t into, double weight_from, double weight_into) override {
    const Slot& a = slots_[from];
    Slot& b = slots_[into];
    for (size_t r = 0; r < rows_; ++r) average_into(a.ring[r], b.ring[r], weight_from, weight_into);
    sum_anew(b);
  }

 private:
  struct Slot {
    std::vector<double> ring;  // row number r of all lies at r mod rows
    double sum = 0;
    double weighted = 0;  // sum of weight * row
  };

  void sum_anew(Slot& slot) const {
    slot.sum = slot.weighted = 0;
    for (size_t age = 0; age < rows_; ++age) {  // 0: the oldest, at the place of the next row
      const double row = slot.ring[(at_ + age) % rows_];
      slot.sum += row;
      slot.weighted += (rows_ == 1 ? newest_ : 1 + slope_ * static_cast<double>(age)) * row;
    }
  }

  size_t rows_;
  double newest_;
  double slope_;
  size_t at_ = 0;  // where the next row goes
  std::vector<Slot> slots_;
};

}  // namespace

std::unique_ptr<SlotStatistic> deviation_of_seen_rows(int64_t slots) {
  return std::make_unique<DeviationOfSeen>(slots);
}

}  // namespace kvsim

namespace kvsim::stages::aggregate::kinds {

const Declare aggregate("aggregate", "kind", "mean", "how the observing queries' rows become one",
                        only_with(scores_rows_if));
const Declare single_row("single_row", "count >= 0 row", "15",
                         "the one row of J that counts, 0 = oldest", tested("0 1"));
const Declare linear_newest("linear_newest", "number > 0", "1.2",
                            "weight of the newest row; the oldest has 1", tested("0.3 2.5"));
const Declare variance_weight("variance_weight", "number >= 0", "200",
                              "gamma: how much the variance over queries counts", tested("0 3"));

using Weights = std::vector<double>;

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

/// Sums divided by M at the end, so that equal rows give exactly their value.
struct MeanOfRows : WeightedSum {
  MeanOfRows(int64_t rows, int64_t columns)
      : WeightedSum(Weights(rows, 1), columns), rows_(static_cast<double>(rows)) {}
  void finish(std::span<double> out) override {
    WeightedSum::finish(out);
    if (rows_ == 0) return;
    for (double& value : out) value /= rows_;
  }

 private:
  double rows_;
};

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

struct Each : Aggregate {
  Each() : Aggregate({"each", "every step is scored by its own row (oracle-step only)", "kvsim"}) {}
  bool per_step() const override { return true; }
  bool looks_ahead() const override { return true; }
  bool at_each_step() const override { return true; }
  std::unique_ptr<Aggregation> start(const Settings&, int64_t, int64_t columns) const override {
    return std::make_unique<Recursive<Average>>(Average{1}, columns);  // the newest row
  }
};

/// A kind by what it makes of rows that are all there, and of slots that come and go. Without the
/// former the latter serves for both.
struct Folding : Aggregate {
  using Start = std::unique_ptr<Aggregation> (*)(const Settings&, int64_t rows, int64_t columns);
  using Follow = std::unique_ptr<SlotStatistic> (*)(const Settings&, int64_t rows, int64_t slots);
  Folding(KindInfo info, Start begin, Follow slots = nullptr)
      : Aggregate(std::move(info)), start_(begin), follow_(slots) {}
  bool follows_slots() const override { return follow_ != nullptr; }
  std::unique_ptr<Aggregation> start(const Settings& settings, int64_t rows,
                                     int64_t columns) const override {
    return start_ ? start_(settings, rows, columns) : follow_(settings, rows, columns);
  }
  std::unique_ptr<SlotStatistic> follow(const Settings& settings, int64_t rows,
                                        int64_t slots) const override {
    return follow_ ? follow_(settings, rows, slots) : nullptr;
  }

 private:
  Start start_;
  Follow follow_;
};

using Started = std::unique_ptr<Aggregation>;
using Followed = std::unique_ptr<SlotStatistic>;

Started weighted(Weights weights, int64_t columns) {
  return std::make_unique<WeightedSum>(std::move(weights), columns);
}

/// Weight 1 for one row, 0 for the others.
Started one_row(int64_t rows, int64_t row, int64_t columns) {
  Weights weights(rows, 0);
  if (rows > 0) weights[std::min(row, rows - 1)] = 1;
  return weighted(std::move(weights), columns);
}

Started linear(const Settings& settings, int64_t rows, int64_t columns) {
  const double newest = settings.real(linear_newest);
  Weights weights(rows, newest);
  for (int64_t k = 0; k < rows && rows > 1; ++k)
    weights[k] = 1 + (newest - 1) * static_cast<double>(k) / static_cast<double>(rows - 1);
  for (double& w : weights) w /= static_cast<double>(rows);
  return weighted(std::move(weights), columns);
}

Started ema_inverse(const Settings& settings, int64_t rows, int64_t columns) {
  const double alpha = settings.real(keys::ema_alpha);
  Weights weights(rows, 0);
  double past = 1;  // (1 - alpha)^j
  for (int64_t j = 0; j < rows; ++j, past *= 1 - alpha)
    weights[j] = j + 1 < rows ? alpha * past : past;
  return weighted(std::move(weights), columns);
}

const bool foldings_registered = [] {
  const auto add = [](const char* name, const char* meaning, const char* source, const char* keys,
                      Folding::Start start, Folding::Follow follow = nullptr) {
    Kinds<Aggregate>::add(
        std::make_unique<Folding>(KindInfo{name, meaning, source, keys}, start, follow));
  };
  add("sum", "sum over the observing queries", "H2O", "", nullptr,
      [](const Settings&, int64_t rows, int64_t slots) -> Followed {
        return std::make_unique<Summed>(rows, slots);
      });
  add(
      "mean", "mean over the observing queries", "SnapKV", "",
      [](const Settings&, int64_t rows, int64_t columns) -> Started {
        return std::make_unique<MeanOfRows>(rows, columns);
      },
      [](const Settings&, int64_t rows, int64_t slots) -> Followed {
        return std::make_unique<MeanOfLast>(1, rows, slots);
      });
  add("mean-visible", "sum over J / number of queries that see the entry",
      "kvpress ObservedAttention", "", nullptr,
      [](const Settings&, int64_t rows, int64_t slots) -> Followed {
        return std::make_unique<MeanOfSeen>(rows, slots);
      });
  add(
      "last", "the newest row alone", "TOVA", "",
      [](const Settings&, int64_t rows, int64_t columns) {
    return one_row(rows, rows - 1, columns);
      },
      [](const Settings&, int64_t, int64_t slots) -> Followed {
        return std::make_unique<Recursive<Average>>(Average{1}, slots);
      });
  add("single", "one row alone (row `single_row`, or the newest if J is shorter)",
      "DefensiveKV 3.2", "single_row", [](const Settings& settings, int64_t rows, int64_t columns) {
        return one_row(rows, settings.count(single_row), columns);
      });
  add("linear", "mean with weights rising linearly from 1 to `linear_newest`", "PyramidInfer",
      "linear_newest", linear,
      [](const Settings& settings, int64_t rows, int64_t slots) -> Followed {
        return std::make_unique<MeanOfLast>(settings.real(linear_newest), rows, slots);
      });
  add("ema-inverse", "`ema` run from the newest row to the oldest", "ReST-KV Table 13", "ema_alpha",
      ema_inverse);
  // e_1 = X_1; e_k = alpha X_k + (1 - alpha) e_{k-1}.
  add("ema", "exponential moving average, newest row weighs alpha", "ReST-KV Eq. 9", "ema_alpha",
      nullptr, [](const Settings& settings, int64_t, int64_t slots) -> Followed {
        return std::make_unique<Recursive<Average>>(Average{settings.real(keys::ema_alpha)}, slots);
      });
  add("max", "largest value over the observing queries", "DefensiveKV Eq. 5", "", nullptr,
      [](const Settings&, int64_t, int64_t slots) -> Followed {
        return std::make_unique<Recursive<Larger>>(Larger{}, slots);
      });
  add("mean-variance", "mean + gamma * variance over the queries", "CAKE", "variance_weight",
      [](const Settings& settings, int64_t, int64_t columns) -> Started {
        return std::make_unique<MeanAndVariance>(settings.real(variance_weight), columns);
      });
  add("power-mean", "(mean of X^p)^(1/p) over the queries, X below 0 as 0: between mean and max",
      "kvsim", "power", [](const Settings& settings, int64_t rows, int64_t columns) -> Started {
        return std::make_unique<PowerSum>(settings.real(keys::power), rows, columns);
      });
  return true;
}();
const Register<Aggregate, Each> registered;

}  // namespace kvsim::stages::aggregate::kinds
