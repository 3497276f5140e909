#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace {

/// A squared distance below this share of its parts is taken from the difference itself.
constexpr double kCancelled = 1e-8;

/// (output - v) G (output - v)^T.
double square_of_gap(std::span<const double> output, std::span<const float> v,
                     const Table<double>& gram) {
  double squares = 0;
  for (size_t r = 0; r < v.size(); ++r) {
    double sum = 0;
    for (size_t c = 0; c < v.size(); ++c)
      sum += gram.row(static_cast<int64_t>(r))[c] * (output[c] - static_cast<double>(v[c]));
    squares += (output[r] - static_cast<double>(v[r])) * sum;
  }
  return squares;
}

/// Attention is aggregated first; the change of the output follows from the aggregate.
class MeanRows : public RowIndicator {
 public:
  explicit MeanRows(LayerWork& work) : work_(work) {}

  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const override {
    const float* a = block.attention_row(head, row) + candidates.begin;
    for (size_t c = 0; c < out.size(); ++c) out[c] = static_cast<double>(a[c]);
  }

  /// a/(1-a) * ||(mean output - v_i) W^h||; the mean output is not renormalised (as coded).
  void finish(int query_head, Range candidates, std::span<double> mean) const override {
    const int kv_head = query_head / work_.group_size();
    const Table<float> values = work_.values(kv_head);
    const OutputMetric& metric = work_.output_metric(query_head, query_head);
    const auto dv = static_cast<size_t>(work_.value_dim());
    std::vector<double> output(dv, 0.0), turned(dv, 0.0);
    for (int64_t i = candidates.begin; i < candidates.end; ++i) {
      const double share = mean[static_cast<size_t>(i - candidates.begin)];
      for (size_t c = 0; c < dv; ++c)
        output[c] += share * static_cast<double>(values.row(i)[c]);
    }
    for (size_t r = 0; r < dv; ++r)
      for (size_t c = 0; c < dv; ++c)
        turned[c] += output[r] * metric.gram.row(static_cast<int64_t>(r))[c];
    const double own = std::inner_product(output.begin(), output.end(), turned.begin(), 0.0);
    std::vector<double> products(mean.size());
    work_.backend().value_products(work_.trace(), kv_head, turned.data(), 1, candidates,
                                   products.data());
    for (size_t at = 0; at < mean.size(); ++at) {
      const double form = metric.forms[static_cast<size_t>(candidates.begin) + at];
      double squares = own - 2 * products[at] + form;
      if (squares < kCancelled * (own + form)) squares = square_of_gap(
          output, values.row(candidates.begin + static_cast<int64_t>(at)), metric.gram);
      double& score = mean[at];
      score = score < 1 ? score / (1 - score) * std::sqrt(std::max(squares, 0.0)) : INFINITY;
    }
  }

 private:
  LayerWork& work_;
};

class OutputChangeMean : public Indicator {
 public:
  OutputChangeMean()
      : Indicator({"indicator", "output-change-mean", "the output's change, from attention "
                   "aggregated over the queries first", "ReST-KV code", {}}) {}
  Axes axes() const override { return Axes::head_row; }
  bool aggregates_first() const override { return true; }
  std::unique_ptr<RowIndicator> rows(LayerWork& work, const Settings&,
                                     const Segment&) const override {
    return std::make_unique<MeanRows>(work);
  }
};
const Register<Indicator, OutputChangeMean> output_change_mean;

}  // namespace
}  // namespace kvsim
