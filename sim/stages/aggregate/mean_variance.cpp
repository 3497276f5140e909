#include <vector>

#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::stages::aggregate::mean_variance {
namespace {

const Declare variance_weight("variance_weight", "number >= 0", "200",
                              "gamma: how much the variance over queries counts", tested("0 3"));

/// Running mean and squared deviations (Welford), stable for rows that hardly differ.
class MeanAndVariance : public Aggregation {
 public:
  MeanAndVariance(double weight, int64_t columns)
      : weight_(weight), mean_(static_cast<size_t>(columns), 0.0),
        squares_(static_cast<size_t>(columns), 0.0) {}
  void add(int64_t j, int64_t first, std::span<const double> part) override {
    const double rows = static_cast<double>(j + 1);
    double* const mean = mean_.data() + first;
    double* const squares = squares_.data() + first;
    for (size_t c = 0; c < part.size(); ++c) {
      const double change = part[c] - mean[c];
      mean[c] += change / rows;
      squares[c] += change * (part[c] - mean[c]);
    }
  }
  void see(int64_t j, int64_t) override { rows_ = static_cast<double>(j + 1); }
  void finish(std::span<double> out) override {
    for (size_t c = 0; c < out.size(); ++c)
      out[c] = mean_[c] + (rows_ > 1 ? weight_ * squares_[c] / (rows_ - 1) : 0);
  }

 private:
  double weight_;
  double rows_ = 0;
  std::vector<double> mean_;
  std::vector<double> squares_;
};

class MeanVariance : public Aggregate {
 public:
  MeanVariance()
      : Aggregate({"aggregate",
                   "mean-variance",
                   "mean + gamma * variance over the queries",
                   "CAKE",
                   {"variance_weight"}}) {}
  std::unique_ptr<Aggregation> start(const Settings& settings, int64_t,
                                     int64_t columns) const override {
    return std::make_unique<MeanAndVariance>(settings.real(variance_weight), columns);
  }
};
const Register<Aggregate, MeanVariance> mean_variance;

}  // namespace
}  // namespace kvsim::stages::aggregate::mean_variance
