#include "sim/core/numbers.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::keys {

const Declare estimate_window("estimate_window", "share >= 1 queries", "32",
                              "newest queries that an estimate starts from");

}  // namespace kvsim::keys

namespace kvsim::stages::estimate::estimate {

/// One value per line and slot, [lines][slots], with slots that come and go.
template <class T>
class LineTable {
 public:
  LineTable(int lines, int64_t slots, T value)
      : fill_(value), lines_(lines, std::vector<T>(slots, value)) {}

  std::vector<T>& line(int l) { return lines_[l]; }
  T& at(int64_t slot, int l) { return lines_[l][slot]; }
  const T& at(int64_t slot, int l) const { return lines_[l][slot]; }
  void append() {
    for (auto& line : lines_) line.push_back(fill_);
  }
  void erase(std::span<const int64_t> slots) {
    for (auto& line : lines_) erase_rows(line, 1, slots);
  }

 private:
  T fill_;
  std::vector<std::vector<T>> lines_;
};

const Declare estimate_decay("estimate_decay", "number [0, 1)", "0.9",
                             "weight of the past in a moving average of scores");

/// S <- a S + (1-a) s, and the same with s = 1 over the queries that saw the slot; both in logs.
/// The latter depends on their number alone.
struct MovingAverage : Estimates {
  MovingAverage(double decay, int lines, int64_t slots)
      : log_past_(decay > 0 ? std::log(decay) : kNothing), log_new_(std::log1p(-decay)),
        log_sum_(lines, slots, kNothing), seen_(lines, slots, 0) {}

  std::unique_ptr<Estimates> copy() const override {
    return std::make_unique<MovingAverage>(*this);
  }
  void see(int line, std::span<const double> logits) override {
    std::vector<double>& sum = log_sum_.line(line);
    std::vector<size_t>& seen = seen_.line(line);
    for (size_t s = 0; s < logits.size(); ++s) {
      if (logits[s] == kNothing) continue;  // weights count from the first query that sees it
      sum[s] = log_add(log_past_ + sum[s], log_new_ + logits[s]);
      if (++seen[s] == log_weight_.size())
        log_weight_.push_back(log_add(log_past_ + log_weight_.back(), log_new_));
    }
  }
  double log_score(int64_t slot, int line) const override {
    return log_sum_.at(slot, line) - weight(slot, line);
  }
  void append() override {
    log_sum_.append();
    seen_.append();
  }
  void erase(std::span<const int64_t> slots) override {
    log_sum_.erase(slots);
    seen_.erase(slots);
  }
  void restart(int64_t slot, int line, double log_score) override {  // the weight goes on
    log_sum_.at(slot, line) = log_score + weight(slot, line);
  }

 private:
  double weight(int64_t slot, int line) const { return log_weight_[seen_.at(slot, line)]; }

  double log_past_;
  double log_new_;
  LineTable<double> log_sum_;
  LineTable<size_t> seen_;                       // queries that saw the slot
  std::vector<double> log_weight_ = {kNothing};  // by their number
};

int64_t window_of(const Settings& settings, int64_t budget) {
  return std::max<int64_t>(1, settings.share(keys::estimate_window, budget));
}

/// KeepKV Eq. 8. Its printed correction 1 - a^t does not match a start from a window of w+1
/// queries; the true sum of the weights does.
struct Ema : ScoreEstimate {
  Ema()
      : ScoreEstimate({"ema", "moving average of scores over its weights", "KeepKV Eq. 8",
                       "estimate_decay estimate_window", "queries n-1-w..n-1"}) {}
  int64_t rows(const Settings& settings, int64_t budget) const override {
    return window_of(settings, budget) + 1;
  }
  std::unique_ptr<Estimates> start(const Settings& settings, int64_t, int lines,
                                   int64_t slots) const override {
    return std::make_unique<MovingAverage>(settings.real(estimate_decay), lines, slots);
  }
};

/// The logits of the last queries that saw a slot, overwritten in turn.
struct Recent {
  std::vector<double> logits;
  size_t oldest = 0;

  void add(double logit, size_t most) {
    if (logits.size() < most) {
      logits.push_back(logit);
    } else {
      logits[oldest] = logit;
      oldest = (oldest + 1) % most;
    }
  }
};

struct WindowAverage : Estimates {
  WindowAverage(size_t window, int lines, int64_t slots)
      : window_(window), recent_(lines, slots, {}) {}
  std::unique_ptr<Estimates> copy() const override {
    return std::make_unique<WindowAverage>(*this);
  }
  void see(int line, std::span<const double> logits) override {
    for (int64_t s = 0; s < std::ssize(logits); ++s)
      if (logits[s] != kNothing) recent_.at(s, line).add(logits[s], window_);
  }
  double log_score(int64_t slot, int line) const override {
    const Recent& recent = recent_.at(slot, line);
    double sum = kNothing;
    for (const double logit : recent.logits) sum = log_add(sum, logit);
    return sum - std::log(static_cast<double>(std::max<size_t>(1, recent.logits.size())));
  }
  void append() override { recent_.append(); }
  void erase(std::span<const int64_t> slots) override { recent_.erase(slots); }
  void restart(int64_t slot, int line, double log_score) override {
    recent_.at(slot, line) = {{log_score}, 0};
  }

 private:
  size_t window_;
  LineTable<Recent> recent_;
};

struct WindowMean : ScoreEstimate {
  using ScoreEstimate::ScoreEstimate;
  WindowMean()
      : ScoreEstimate({"window-mean", "mean of the newest scores", "KeepKV repository",
                       "estimate_window", "the last w queries"}) {}
  int64_t rows(const Settings& settings, int64_t budget) const override {
    return window_of(settings, budget);
  }
  std::unique_ptr<Estimates> start(const Settings& settings, int64_t budget, int lines,
                                   int64_t slots) const override {
    return std::make_unique<WindowAverage>(rows(settings, budget), lines, slots);
  }
};

struct Last : WindowMean {
  Last() : WindowMean({"last", "the newest query's score", "kvsim", "", "query n-1"}) {}
  int64_t rows(const Settings&, int64_t) const override { return 1; }
};
const Register<ScoreEstimate, Last, Ema, WindowMean> registered;

}  // namespace kvsim::stages::estimate::estimate
