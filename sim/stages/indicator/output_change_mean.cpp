#include <cmath>
#include <vector>

#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace {

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
    const Table<float> values = work_.values(query_head / work_.group_size());
    const Table<double>& factor = work_.output_factor(query_head);
    const int64_t dv = work_.value_dim();
    std::vector<double> output(static_cast<size_t>(dv), 0.0);
    for (int64_t i = candidates.begin; i < candidates.end; ++i)
      for (int64_t c = 0; c < dv; ++c)
        output[static_cast<size_t>(c)] += mean[static_cast<size_t>(i - candidates.begin)] *
                                          static_cast<double>(values(i, c));
    std::vector<double> gap(static_cast<size_t>(dv));
    for (int64_t i = candidates.begin; i < candidates.end; ++i) {
      double& score = mean[static_cast<size_t>(i - candidates.begin)];
      for (int64_t c = 0; c < dv; ++c)
        gap[static_cast<size_t>(c)] =
            output[static_cast<size_t>(c)] - static_cast<double>(values(i, c));
      double squares = 0;
      for (int64_t r = 0; r < factor.rows(); ++r) {
        double sum = 0;
        for (int64_t c = r; c < dv; ++c) sum += factor(r, c) * gap[static_cast<size_t>(c)];
        squares += sum * sum;
      }
      score = score < 1 ? score / (1 - score) * std::sqrt(squares) : INFINITY;
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
