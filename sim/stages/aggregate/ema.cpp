#include <vector>

#include "sim/stages/aggregate/slot_statistics.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim {
namespace {

/// e_1 = X_1; e_k = alpha X_k + (1 - alpha) e_{k-1} (ReST-KV Eq. 9).
class Recursion : public Aggregation {
 public:
  Recursion(double alpha, int64_t columns)
      : alpha_(alpha), values_(static_cast<size_t>(columns), 0.0) {}
  void add(int64_t j, int64_t first, std::span<const double> part) override {
    const double past = j == 0 ? 0 : 1 - alpha_;
    double* const values = values_.data() + first;
    for (size_t c = 0; c < part.size(); ++c)  // no memory: an infinite past must not become NaN
      values[c] = past == 0 ? part[c] : alpha_ * part[c] + past * values[c];
  }
  void finish(std::span<double> out) override {
    for (size_t c = 0; c < out.size(); ++c) out[c] = values_[c];
  }

 private:
  double alpha_;
  std::vector<double> values_;
};

class Ema : public Aggregate {
 public:
  Ema()
      : Aggregate({"aggregate",
                   "ema",
                   "exponential moving average, newest row weighs alpha",
                   "ReST-KV Eq. 9",
                   {"ema_alpha"}}) {}
  std::unique_ptr<Aggregation> start(const Settings& settings, int64_t,
                                     int64_t columns) const override {
    return std::make_unique<Recursion>(settings.real("ema_alpha"), columns);
  }
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings& settings, int64_t,
                                        int64_t slots) const override {
    return average_of_rows(settings.real("ema_alpha"), slots);
  }
};
const Register<Aggregate, Ema> ema;
const DeclareNote ema_note{
    {.of = "aggregate=ema",
     .source = "ReST-KV Eq. 9",
     .point = "the average starts with its first row at full weight, without a "
              "correction",
     .reading = "as printed: alpha weights the newest row, the oldest keeps (1 - "
                "alpha)^(S_w - 1)"}};

}  // namespace
}  // namespace kvsim
