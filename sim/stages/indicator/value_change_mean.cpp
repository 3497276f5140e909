#include <cmath>
#include <vector>

#include "sim/core/parallel.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim::stages::indicator::value_change_mean {
namespace {

constexpr int64_t kWidenedValues = 256;  // that are widened at a time

/// Attention is aggregated first; the error of the head's output follows from its shares.
class ValueChangeRows : public RowIndicator {
 public:
  explicit ValueChangeRows(LayerWork& work) : work_(work) {}

  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const override {
    const float* a = block.attention_row(head, row) + candidates.begin;
    for (size_t c = 0; c < out.size(); ++c) out[c] = static_cast<double>(a[c]);
  }

  /// a / (1 - a) |sum a v - v_i|, a brought to a sum of 1 over the candidates.
  void finish(int first_head, Range candidates,
              std::span<std::vector<double>> rows) const override {
    const int kv_head = first_head / work_.group_size();
    parallel_for(std::ssize(rows), [&](int64_t head) {
      std::vector<double>& share = rows[static_cast<size_t>(head)];
      double sum = 0;
      for (const double a : share) sum += a;
      for (double& a : share) a = sum > 0 ? a / sum : 0;
      std::vector<double> output(static_cast<size_t>(work_.value_dim()), 0.0);
      for_each_value(kv_head, candidates, [&](size_t at, std::span<const float> v) {
        for (size_t c = 0; c < v.size(); ++c) output[c] += share[at] * static_cast<double>(v[c]);
      });
      for_each_value(kv_head, candidates, [&](size_t at, std::span<const float> v) {
        double squares = 0;
        for (size_t c = 0; c < v.size(); ++c) {
          const double gap = output[c] - static_cast<double>(v[c]);
          squares += gap * gap;
        }
        double& a = share[at];
        a = a < 1 ? a / (1 - a) * std::sqrt(squares) : INFINITY;
      });
    });
  }

 private:
  /// visit(place among the candidates, v_i).
  template <class Visit>
  void for_each_value(int kv_head, Range candidates, const Visit& visit) const {
    Table<float> values(std::min(kWidenedValues, candidates.size()), work_.value_dim());
    for (int64_t first = candidates.begin; first < candidates.end; first += kWidenedValues) {
      const int64_t last = std::min(candidates.end, first + kWidenedValues);
      work_.trace().v.read(kv_head, first, last, values.data());
      for (int64_t i = first; i < last; ++i)
        visit(static_cast<size_t>(i - candidates.begin), values.row(i - first));
    }
  }

  LayerWork& work_;
};

class ValueChangeMean : public Indicator {
 public:
  ValueChangeMean()
      : Indicator({"indicator",
                   "value-change-mean",
                   "the head's output error when an entry goes, from attention aggregated and "
                   "normalised first",
                   "CAOTE",
                   {}}) {}
  Axes axes() const override { return Axes::head_row; }
  bool aggregates_first() const override { return true; }
  std::unique_ptr<RowIndicator> rows(LayerWork& work, const Settings&,
                                     const Segment&) const override {
    return std::make_unique<ValueChangeRows>(work);
  }
};
const Register<Indicator, ValueChangeMean> value_change_mean;
const DeclareNote value_change_mean_note{
    {.of = "indicator=value-change-mean",
     .source = "CAOTE",
     .point = "over which entries a base method's scores are brought to a sum of 1; where its "
              "pooling stands; what query heads that share an entry do",
     .reading = "over the candidates; pooling and the group follow the error"}};

}  // namespace
}  // namespace kvsim::stages::indicator::value_change_mean
