#include <algorithm>
#include <cmath>

#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim::stages::allocate::d2o {
namespace {

/// Variance over entries of the attention that each query head gave them in all (D2O Eq. 4).
class Concentration : public RowStatistic {
 public:
  bool takes_sums() const override { return true; }
  void add_sum(std::span<const double> sum) override {
    const auto columns = static_cast<double>(sum.size());
    double mean = 0;
    for (const double x : sum) mean += x / columns;
    double squares = 0;
    for (const double x : sum) squares += (x - mean) * (x - mean);
    variance_.push_back(columns > 1 ? squares / (columns - 1) : 0);
  }
  std::vector<double> finish() override {
    const auto [low, high] = std::minmax_element(variance_.begin(), variance_.end());
    double mean = 0;
    for (double v : variance_)
      mean += (v - *low) / (*high - *low + 1e-6) / static_cast<double>(variance_.size());
    return {mean};
  }

 private:
  std::vector<double> variance_;  // per query head
};

class D2o : public Allocate {
 public:
  D2o()
      : Allocate({"allocate",
                  "d2o",
                  "layers by how evenly their attention is spread",
                  "D2O Eq. 4-5",
                  {}}) {}
  bool needs_scores() const override { return true; }
  bool across_layers() const override { return true; }
  bool watches() const override { return true; }
  std::unique_ptr<RowStatistic> statistic(const Settings&, const TraceInfo&, int64_t,
                                          Range) const override {
    return std::make_unique<Concentration>();
  }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    std::vector<double> weights;
    for (const AllocationLayer& layer : request.layers)
      weights.push_back(std::exp(-layer.scored->statistic.at(0)));
    const auto layers = static_cast<int64_t>(weights.size());
    const auto shares = apportion(layers * request.budget, weights, request.entries);
    Table<int64_t> b(layers, request.owners);
    for (int64_t l = 0; l < layers; ++l)
      for (int64_t& entry : b.row(l)) entry = shares[static_cast<size_t>(l)];
    return b;
  }
};
const Register<Allocate, D2o> d2o;
const DeclareNote d2o_note{
    {.of = "allocate=d2o",
     .source = "D2O repository",
     .point = "its softmax over layers includes skipped ones and clamps to "
              "[0.01, 1]; its recent share is of the layer's own size; it "
              "compresses at the first decode step",
     .reading = "sizes over the layers of the run, at n; the paper does not fix "
                "the recent share: 0.5 of B"}};

}  // namespace
}  // namespace kvsim::stages::allocate::d2o
