#include <algorithm>
#include <vector>

#include "sim/stages/aggregate/aggregate.hpp"

namespace kvsim::stages::aggregate::each {
namespace {

/// Keeps the newest row: with schedule=per-step the replay folds one row at a time.
class NewestRow : public Aggregation {
 public:
  explicit NewestRow(int64_t columns) : values_(static_cast<size_t>(columns), 0.0) {}
  void add(int64_t, int64_t first, std::span<const double> part) override {
    std::ranges::copy(part, values_.begin() + first);
  }
  void finish(std::span<double> out) override {
    for (size_t c = 0; c < out.size(); ++c) out[c] = values_[c];
  }

 private:
  std::vector<double> values_;
};

class Each : public Aggregate {
 public:
  Each()
      : Aggregate({"aggregate",
                   "each",
                   "every step is scored by its own row (oracle-step only)",
                   "kvsim",
                   {}}) {}
  bool per_step() const override { return true; }
  bool looks_ahead() const override { return true; }
  bool at_each_step() const override { return true; }
  std::unique_ptr<Aggregation> start(const Settings&, int64_t, int64_t columns) const override {
    return std::make_unique<NewestRow>(columns);
  }
};
const Register<Aggregate, Each> each;

}  // namespace
}  // namespace kvsim::stages::aggregate::each
