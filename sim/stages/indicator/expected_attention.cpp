#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "sim/core/log_sum.hpp"
#include "sim/core/parallel.hpp"
#include "sim/stages/common_keys.hpp"
#include "sim/stages/indicator/unrotated.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim::stages::indicator::expected_attention {
namespace {

const Declare expected_steps("expected_steps", "count >= 1 tokens", "512",
                             "later positions over which the rotation is averaged", tested("1 9"));
const Declare expected_variance("expected_variance", "flag", "yes",
                                "the covariance of the queries counts, too");

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Mean and covariance of the queries to come, which are taken for normally distributed.
struct QueryForecast {
  Eigen::VectorXd mean;  ///< [d]
  Matrix covariance;     ///< [d][d]; empty where only the mean counts
};

std::span<double> span_of(Eigen::VectorXd& x) { return {x.data(), static_cast<size_t>(x.size())}; }

/// Statistics of the queries before their rotation, turned by the mean rotation R: R mu and
/// R Sigma R^T (divisor: their number).
QueryForecast forecast(const Table<float>& queries, const MeanRotation& rotation,
                       bool with_variance) {
  using Stored = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrix q =
      Eigen::Map<const Stored>(queries.data(), queries.rows(), queries.columns()).cast<double>();
  QueryForecast result;
  result.mean = q.colwise().mean();
  if (with_variance) {
    const Matrix centred = q.rowwise() - result.mean.transpose();
    Matrix turned = centred.transpose() * centred / static_cast<double>(q.rows());
    for (int side = 0; side < 2; ++side) {  // rows, then what were the columns
      for (int64_t r = 0; r < turned.rows(); ++r)
        rotation.turn({turned.row(r).data(), static_cast<size_t>(turned.cols())});
      turned.transposeInPlace();
    }
    result.covariance = std::move(turned);
  }
  rotation.turn(span_of(result.mean));
  return result;
}

/// ln E exp(scale q k) for each of the keys [entries][d]: scale mu k + scale^2/2 k^T Sigma k.
void add_logits(const QueryForecast& queries, double scale, const Matrix& keys,
                std::span<double> out) {
  Eigen::VectorXd logits = scale * (keys * queries.mean);
  if (queries.covariance.size() > 0)
    logits += scale * scale / 2 * (keys * queries.covariance).cwiseProduct(keys).rowwise().sum();
  std::copy_n(logits.data(), out.size(), out.begin());
}

/// Softmax of `row` from column `first` on; 0 before it.
void softmax_from(size_t first, std::span<double> row) {
  std::fill_n(row.begin(), first, 0.0);
  const std::span<double> seen = row.subspan(first);
  if (seen.empty()) return;
  const double top = *std::ranges::max_element(seen);
  double sum = 0;
  for (double& x : seen) sum += x = std::exp(x - top);
  for (double& x : seen) x /= sum;
}

class ExpectedAttention : public ObservedIndicator {
 public:
  ExpectedAttention()
      : ObservedIndicator(
            {"indicator", "expected-attention",
             "softmax of the expected exp(logit) of normally distributed later queries",
             "Expected Attention; kvpress ExpectedAttentionPress",
             "expected_steps expected_variance sinks", "rope/inv_freq"}) {}
  Axes axes() const override { return Axes::head; }
  bool moves_queries() const override { return true; }
  double cost() const override { return 1; }

  Table<double> observed(const EntryRequest& request, const Segment& segment) const override {
    LayerWork& work = request.work;
    const int64_t sinks = request.settings.count(keys::sinks);
    const auto positions = observing_from(segment, sinks);
    std::vector<int64_t> later(static_cast<size_t>(request.settings.count(expected_steps)));
    std::iota(later.begin(), later.end(), work.entries());
    const MeanRotation rotation(work.rotation(), later);
    const Range candidates = segment.candidates;
    const int64_t unscored = std::clamp<int64_t>(sinks - candidates.begin, 0, candidates.size());
    Table<double> scores(work.query_heads(), candidates.size());
    parallel_for(work.query_heads(), [&](int64_t head) {
      const QueryForecast queries = forecast(
          unrotated_queries(work, static_cast<int>(head), positions), rotation,
          request.settings.flag(expected_variance));
      const auto row = scores.row(head);
      constexpr int64_t kRows = 1024;  // keys that are widened at a time
      Table<float> stored(std::min(kRows, candidates.size()), work.trace().k.dim(2));
      for (int64_t first = candidates.begin; first < candidates.end; first += kRows) {
        const int64_t last = std::min(candidates.end, first + kRows);
        work.trace().k.read(head / work.group_size(), first, last, stored.data());
        using Stored = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
        const Matrix keys =
            Eigen::Map<const Stored>(stored.data(), last - first, stored.columns()).cast<double>();
        add_logits(queries, work.trace().scale, keys,
                   row.subspan(static_cast<size_t>(first - candidates.begin),
                               static_cast<size_t>(last - first)));
      }
      softmax_from(static_cast<size_t>(unscored), row);
    });
    return scores;
  }
};
const Register<Indicator, ExpectedAttention> expected_attention;
const DeclareNote expected_attention_note(
    "indicator=expected-attention", "kvpress ExpectedAttentionPress",
    "the softmax runs over the prompt alone, not over what follows it",
    "as coded; the first `sinks` entries and queries take no part");

}  // namespace
}  // namespace kvsim::stages::indicator::expected_attention
