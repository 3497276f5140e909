#include <algorithm>
#include <cmath>

#include "sim/stages/allocate/allocate.hpp"

namespace kvsim {
namespace {

/// Variance over entries of the attention that each query head gave them in all (D2O Eq. 4).
class Concentration : public RowStatistic {
 public:
  void add(const AttentionBlock& block, int64_t row_begin, Range candidates) override {
    const auto columns = static_cast<size_t>(candidates.size());
    if (row_begin == 0) {
      close();
      sums_.assign(static_cast<size_t>(block.heads) * columns, 0.0);
      heads_ = static_cast<size_t>(block.heads);
    }
    for (int head = 0; head < block.heads; ++head)
      for (int64_t r = 0; r < block.rows; ++r) {
        const float* a = block.attention_row(head, r) + candidates.begin;
        double* sum = sums_.data() + static_cast<size_t>(head) * columns;
        for (size_t c = 0; c < columns; ++c) sum[c] += static_cast<double>(a[c]);
      }
  }
  std::vector<double> finish() override {
    close();
    const auto [low, high] = std::minmax_element(variance_.begin(), variance_.end());
    double mean = 0;
    for (double v : variance_)
      mean += (v - *low) / (*high - *low + 1e-6) / static_cast<double>(variance_.size());
    return {mean};
  }

 private:
  void close() {
    const size_t columns = heads_ > 0 ? sums_.size() / heads_ : 0;
    for (size_t head = 0; head < heads_; ++head) {
      const double* sum = sums_.data() + head * columns;
      double mean = 0;
      for (size_t c = 0; c < columns; ++c) mean += sum[c] / static_cast<double>(columns);
      double squares = 0;
      for (size_t c = 0; c < columns; ++c) squares += (sum[c] - mean) * (sum[c] - mean);
      variance_.push_back(columns > 1 ? squares / static_cast<double>(columns - 1) : 0);
    }
    heads_ = 0;
  }
  size_t heads_ = 0;
  std::vector<double> sums_;       // [heads][candidates] of the KV head at work
  std::vector<double> variance_;   // per query head
};

class D2o : public Allocate {
 public:
  D2o()
      : Allocate({"allocate", "d2o", "layers by how evenly their attention is spread",
                  "D2O Eq. 4-5", {}}) {}
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

}  // namespace
}  // namespace kvsim
