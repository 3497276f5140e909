#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/core/log_sum.hpp"
#include "sim/stages/estimate/estimate.hpp"
#include "sim/stages/estimate/line_table.hpp"

namespace kvsim::stages::estimate::window_mean {
namespace {

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

class WindowAverage : public Estimates {
 public:
  WindowAverage(size_t window, int lines, int64_t slots)
      : window_(window), recent_(lines, slots, {}) {}
  std::unique_ptr<Estimates> copy() const override {
    return std::make_unique<WindowAverage>(*this);
  }
  void see(int line, std::span<const double> logits) override {
    for (size_t s = 0; s < logits.size(); ++s)
      if (logits[s] != kNothing) recent_.at(static_cast<int64_t>(s), line).add(logits[s], window_);
  }
  double log_score(int64_t slot, int line) const override {
    const Recent& recent = recent_.at(slot, line);
    double sum = kNothing;
    for (const double logit : recent.logits) sum = log_add(sum, logit);
    return sum - std::log(static_cast<double>(recent.logits.size()));
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

int64_t window_of(const Settings& settings, int64_t budget) {
  return std::max<int64_t>(1, settings.share(keys::estimate_window, budget));
}

class WindowMean : public ScoreEstimate {
 public:
  WindowMean()
      : ScoreEstimate({"score_estimate",
                       "window-mean",
                       "mean of the newest scores",
                       "KeepKV repository",
                       {"estimate_window"},
                       "the last w queries"}) {}
  int64_t rows(const Settings& settings, int64_t budget) const override {
    return window_of(settings, budget);
  }
  std::unique_ptr<Estimates> start(const Settings& settings, int64_t budget, int lines,
                                   int64_t slots) const override {
    return std::make_unique<WindowAverage>(static_cast<size_t>(window_of(settings, budget)), lines,
                                           slots);
  }
};
const Register<ScoreEstimate, WindowMean> window_mean;

}  // namespace
}  // namespace kvsim::stages::estimate::window_mean
