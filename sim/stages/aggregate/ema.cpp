#include "sim/stages/aggregate/slot_statistics.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim::stages::aggregate::ema {
namespace {

/// e_1 = X_1; e_k = alpha X_k + (1 - alpha) e_{k-1} (ReST-KV Eq. 9).
class Ema : public Aggregate {
 public:
  Ema()
      : Aggregate({"aggregate",
                   "ema",
                   "exponential moving average, newest row weighs alpha",
                   "ReST-KV Eq. 9",
                   {"ema_alpha"}}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings& settings, int64_t,
                                        int64_t slots) const override {
    return average_of_rows(settings.real(keys::ema_alpha), slots);
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
}  // namespace kvsim::stages::aggregate::ema
