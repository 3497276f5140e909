#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::keys {
const Declare power("power", "number >= 1", "4",
                    "exponent of power means: 1 is the mean, large ones the maximum",
                    tested("1 1.5 2 5"));
}  // namespace kvsim::keys

namespace kvsim::stages::aggregate::power_mean {
namespace {

/// Sum of powers of what is positive.
class PowerSum : public Aggregation {
 public:
  PowerSum(double power, int64_t rows, int64_t columns)
      : power_(power), rows_(static_cast<double>(rows)), sums_(static_cast<size_t>(columns), 0.0) {}
  void add(int64_t, int64_t first, std::span<const double> part) override {
    double* const sums = sums_.data() + first;
    const auto add_all = [&](const auto& raised) {
      for (size_t c = 0; c < part.size(); ++c) sums[c] += raised(std::max(part[c], 0.0));
    };
    if (power_ == 1)
      add_all([](double x) { return x; });
    else if (power_ == 2)
      add_all([](double x) { return x * x; });
    else if (power_ == 1.5)
      add_all([](double x) { return x * std::sqrt(x); });
    else
      add_all([power = power_](double x) { return std::pow(x, power); });
  }
  void finish(std::span<double> out) override {
    const double root = 1 / power_;
    for (size_t c = 0; c < out.size(); ++c)
      out[c] = rows_ > 0 ? std::pow(sums_[c] / rows_, root) : 0;
  }

 private:
  double power_;
  double rows_;
  std::vector<double> sums_;
};

class PowerMean : public Aggregate {
 public:
  PowerMean()
      : Aggregate({"aggregate",
                   "power-mean",
                   "(mean of X^p)^(1/p) over the queries, X below 0 as 0: between mean and max",
                   "kvsim",
                   {"power"}}) {}
  std::unique_ptr<Aggregation> start(const Settings& settings, int64_t rows,
                                     int64_t columns) const override {
    return std::make_unique<PowerSum>(settings.real(keys::power), rows, columns);
  }
};
const Register<Aggregate, PowerMean> power_mean;

}  // namespace
}  // namespace kvsim::stages::aggregate::power_mean
