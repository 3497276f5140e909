#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "sim/core/parallel.hpp"
#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::stages::allocate::cake {
namespace {

const Declare cake_tau1("cake_tau1", "number > 0", "1.6", "temperature of the attention's entropy",
                        tested("0.7"));
const Declare cake_tau2("cake_tau2", "number > 0", "0.6",
                        "temperature of the attention's variance over time", tested("2"));

/// Entropy of the attention on the candidates and its variance over the observing queries.
class Preference : public RowStatistic {
 public:
  void add(const AttentionBlock& block, int64_t row_begin, Range candidates) override {
    if (block.kv_head != kv_head_) {
      close();
      kv_head_ = block.kv_head;
      const auto columns = static_cast<size_t>(block.heads * candidates.size());
      mean_.assign(columns, 0.0);
      squares_.assign(columns, 0.0);
    }
    rows_ = row_begin + block.rows;
    std::vector<double> entropy(static_cast<size_t>(block.heads), 0.0);
    parallel_for(block.heads, [&](int64_t head) {
      for (int64_t r = 0; r < block.rows; ++r)
        entropy[static_cast<size_t>(head)] += add_row(
            block.attention_row(static_cast<int>(head), r) + candidates.begin, head,
            row_begin + r + 1, candidates.size());
    });
    for (const double of_head : entropy) entropy_ += of_head;
  }
  std::vector<double> finish() override {
    close();
    return {entropy_, variance_};
  }

 private:
  /// Row number `count` of a head, from 1; returns its entropy.
  double add_row(const float* a, int64_t head, int64_t count, int64_t columns) {
    double* const mean = mean_.data() + head * columns;
    double* const squares = squares_.data() + head * columns;
    for (int64_t c = 0; c < columns; ++c) {
      const auto x = static_cast<double>(a[c]);
      const double change = x - mean[c];
      mean[c] += change / static_cast<double>(count);
      squares[c] += change * (x - mean[c]);
    }
    const auto x = Eigen::Map<const Eigen::ArrayXf>(a, columns).cast<double>();
    return -(x * (x + 1e-10).log()).sum();
  }
  void close() {
    if (kv_head_ >= 0 && rows_ > 1)
      for (double s : squares_) variance_ += s / static_cast<double>(rows_ - 1);
    kv_head_ = -1;
  }
  int kv_head_ = -1;
  int64_t rows_ = 0;
  double entropy_ = 0;
  double variance_ = 0;
  std::vector<double> mean_;  // [heads][candidates] of the KV head at work
  std::vector<double> squares_;
};

class Cake : public Allocate {
 public:
  Cake()
      : Allocate({"allocate",
                  "cake",
                  "layers by entropy and variance of their attention",
                  "CAKE Eq. 5",
                  {"cake_tau1", "cake_tau2"}}) {}
  bool needs_scores() const override { return true; }
  bool across_layers() const override { return true; }
  bool watches() const override { return true; }
  std::unique_ptr<RowStatistic> statistic(const Settings&, const TraceInfo&, int64_t,
                                          Range) const override {
    return std::make_unique<Preference>();
  }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const int64_t m = request.window;
    const auto layers = static_cast<int64_t>(request.layers.size());
    Table<int64_t> b(layers, request.owners, request.budget);
    if (request.budget <= m) return b;
    std::vector<double> preference;
    for (const AllocationLayer& layer : request.layers) {
      const std::vector<double>& seen = layer.scored->statistic;
      preference.push_back(
          std::pow(std::max(0.0, seen.at(0)), 1 / request.settings->real(cake_tau1)) *
          std::pow(seen.at(1), 1 / request.settings->real(cake_tau2)));
    }
    const auto shares = apportion(layers * (request.budget - m), preference, request.entries - m);
    for (int64_t l = 0; l < layers; ++l)
      for (int64_t& entry : b.row(l)) entry = m + shares[static_cast<size_t>(l)];
    return b;
  }
};
const Register<Allocate, Cake> cake;
const DeclareNote cake_note{
    {.of = "allocate=cake",
     .source = "CAKE Eq. 5 and repository",
     .point = "temperatures depend on model and size in its repository, "
              "DefensiveKV's copy fixes 1.6 and 0.6; the code truncates and "
              "gives what is left, and what exceeds a cap, in equal parts to the "
              "layers below",
     .reading = "1.6 and 0.6; rounding and excess by apportion"}};

}  // namespace
}  // namespace kvsim::stages::allocate::cake
