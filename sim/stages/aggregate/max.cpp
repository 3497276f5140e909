#include <algorithm>
#include <vector>

#include "sim/stages/aggregate/slot_statistics.hpp"

namespace kvsim {
namespace {

class Maximum : public Aggregation {
 public:
  explicit Maximum(int64_t columns) : values_(static_cast<size_t>(columns), 0.0) {}
  void add(int64_t j, int64_t first, std::span<const double> part) override {
    double* const values = values_.data() + first;
    for (size_t c = 0; c < part.size(); ++c)
      values[c] = j == 0 ? part[c] : std::max(values[c], part[c]);
  }
  void finish(std::span<double> out) override {
    for (size_t c = 0; c < out.size(); ++c) out[c] = values_[c];
  }

 private:
  std::vector<double> values_;
};

class Max : public Aggregate {
 public:
  Max()
      : Aggregate({"aggregate",
                   "max",
                   "largest value over the observing queries",
                   "DefensiveKV Eq. 5",
                   {}}) {}
  std::unique_ptr<Aggregation> start(const Settings&, int64_t, int64_t columns) const override {
    return std::make_unique<Maximum>(columns);
  }
  bool follows_slots() const override { return true; }
  std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t, int64_t slots) const override {
    return largest_of_rows(slots);
  }
};
const Register<Aggregate, Max> max;

}  // namespace
}  // namespace kvsim
