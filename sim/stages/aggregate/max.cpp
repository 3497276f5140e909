#include "sim/stages/aggregate/slot_statistics.hpp"

namespace kvsim::stages::aggregate::max {
namespace {

class Max : public Aggregate {
 public:
  Max()
      : Aggregate({"aggregate",
                   "max",
                   "largest value over the observing queries",
                   "DefensiveKV Eq. 5",
                   {}}) {}
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t, int64_t slots) const override {
    return largest_of_rows(slots);
  }
};
const Register<Aggregate, Max> max;

}  // namespace
}  // namespace kvsim::stages::aggregate::max
