#include "sim/stages/estimate/estimate.hpp"
#include "sim/stages/estimate/line_table.hpp"

namespace kvsim::stages::estimate::last {
namespace {

class Newest : public Estimates {
 public:
  Newest(int lines, int64_t slots) : newest_(lines, slots, kNothing) {}
  std::unique_ptr<Estimates> copy() const override { return std::make_unique<Newest>(*this); }
  void see(int line, std::span<const double> logits) override {
    for (size_t s = 0; s < logits.size(); ++s)
      if (logits[s] != kNothing) newest_.at(static_cast<int64_t>(s), line) = logits[s];
  }
  double log_score(int64_t slot, int line) const override { return newest_.at(slot, line); }
  void append() override { newest_.append(); }
  void erase(std::span<const int64_t> slots) override { newest_.erase(slots); }
  void restart(int64_t slot, int line, double log_score) override {
    newest_.at(slot, line) = log_score;
  }

 private:
  LineTable<double> newest_;
};

class Last : public ScoreEstimate {
 public:
  Last()
      : ScoreEstimate(
            {"score_estimate", "last", "the newest query's score", "kvsim", {}, "query n-1"}) {}
  int64_t rows(const Settings&, int64_t) const override { return 1; }
  std::unique_ptr<Estimates> start(const Settings&, int64_t, int lines,
                                   int64_t slots) const override {
    return std::make_unique<Newest>(lines, slots);
  }
};
const Register<ScoreEstimate, Last> last;

}  // namespace
}  // namespace kvsim::stages::estimate::last
