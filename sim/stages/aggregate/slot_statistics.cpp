#include "sim/stages/aggregate/aggregate.hpp"

namespace kvsim {
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

std::unique_ptr<SlotStatistic> sum_of_rows(int64_t rows, int64_t slots) {
  return std::make_unique<Summed>(rows, slots);
}
std::unique_ptr<SlotStatistic> mean_of_seen_rows(int64_t rows, int64_t slots) {
  return std::make_unique<MeanOfSeen>(rows, slots);
}
std::unique_ptr<SlotStatistic> deviation_of_seen_rows(int64_t slots) {
  return std::make_unique<DeviationOfSeen>(slots);
}
std::unique_ptr<SlotStatistic> largest_of_rows(int64_t slots) {
  return std::make_unique<Recursive<Larger>>(Larger{}, slots);
}
std::unique_ptr<SlotStatistic> average_of_rows(double alpha, int64_t slots) {
  return std::make_unique<Recursive<Average>>(Average{alpha}, slots);
}
std::unique_ptr<SlotStatistic> mean_of_last_rows(double newest, int64_t rows, int64_t slots) {
  return std::make_unique<MeanOfLast>(newest, rows, slots);
}

}  // namespace kvsim
