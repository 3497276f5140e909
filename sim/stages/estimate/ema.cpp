#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/core/log_sum.hpp"
#include "sim/stages/estimate/estimate.hpp"
#include "sim/stages/estimate/line_table.hpp"
#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::stages::estimate::ema {
namespace {

const Declare estimate_decay("estimate_decay", "number [0, 1)", "0.9",
                             "weight of the past in a moving average of scores");

/// S <- a S + (1-a) s, and the same with s = 1 over the queries that saw the slot; both in logs.
/// The latter depends on their number alone.
class MovingAverage : public Estimates {
 public:
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

/// KeepKV Eq. 8. Its printed correction 1 - a^t does not match a start from a window of w+1
/// queries; the true sum of the weights does.
class Ema : public ScoreEstimate {
 public:
  Ema()
      : ScoreEstimate({"score_estimate",
                       "ema",
                       "moving average of scores over its weights",
                       "KeepKV Eq. 8",
                       {"estimate_decay", "estimate_window"},
                       "queries n-1-w..n-1"}) {}
  int64_t rows(const Settings& settings, int64_t budget) const override {
    return std::max<int64_t>(1, settings.share(keys::estimate_window, budget)) + 1;
  }
  std::unique_ptr<Estimates> start(const Settings& settings, int64_t, int lines,
                                   int64_t slots) const override {
    return std::make_unique<MovingAverage>(settings.real(estimate_decay), lines, slots);
  }
};
const Register<ScoreEstimate, Ema> ema;
const DeclareNote ema_note_1{
    {.of = "score_estimate=ema",
     .source = "KeepKV Eq. 8",
     .point = "the correction 1 - a^t, with t the absolute step, does not match "
              "a start from the w + 1 terms of the window",
     .reading = "S is divided by the true sum of its weights; of a slot that came "
                "later, from the first query that saw it"}};
const DeclareNote ema_note_2{
    {.of = "score_estimate=ema",
     .source = "KeepKV Eq. 8",
     .point = "neither a nor w is given; nor how an estimate goes on after a "
              "merge",
     .reading = "a = 0.9, w = 32; the merged slot starts from the score that Eq. 7 "
                "gives it, and its weights go on"}};

}  // namespace
}  // namespace kvsim::stages::estimate::ema
