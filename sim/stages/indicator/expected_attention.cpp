#include <Eigen/Core>

#include "sim/core/numbers.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {

std::span<const int64_t> observing_from(const Segment& segment, int64_t first) {
  const auto begin = std::ranges::lower_bound(segment.positions, first);
  if (begin == segment.positions.end()) return segment.positions;
  return {begin, segment.positions.end()};
}

Table<float> unrotated_queries(const LayerWork& work, int head,
                               std::span<const int64_t> positions) {
  const std::vector<int64_t> stored = stored_queries(work, positions, false);
  Table<float> queries(std::ssize(positions), work.trace().q.dim(2));
  RotationMemory rotation;
  for (int64_t r = 0; r < queries.rows(); ++r) {
    const int64_t query = stored[r];
    work.trace().q.read(head, query, query + 1, queries.row(r).data());
    rotation.rotate(work.rotation(), -positions[r], queries.row(r));
  }
  return queries;
}

Table<float> unrotated_keys(const LayerWork& work, int kv_head, Range entries) {
  Table<float> keys(entries.size(), work.trace().k.dim(2));
  work.trace().k.read(kv_head, entries.begin, entries.end, keys.data());
  RotationMemory rotation;
  const Rotation& own = work.rotation();
  for (int64_t r = 0; r < keys.rows(); ++r) {
    rotation.rotate(own, -(entries.begin + r), keys.row(r));
    if (own.attention_factor == 1) continue;
    const auto factor = static_cast<float>(own.attention_factor);
    for (size_t j = 0; j < own.pairs(); ++j) {
      keys.row(r)[own.first_of(j)] /= factor;
      keys.row(r)[own.second_of(j)] /= factor;
    }
  }
  return keys;
}

MeanRotation::MeanRotation(const Rotation& rotation, std::span<const int64_t> positions)
    : rotation_(rotation) {
  for (const double frequency : rotation.inv_freq) {
    double cosine = 0, sine = 0;
    for (const int64_t position : positions) {
      cosine += std::cos(static_cast<double>(position) * frequency);
      sine += std::sin(static_cast<double>(position) * frequency);
    }
    cosine_.push_back(cosine / static_cast<double>(positions.size()));
    sine_.push_back(sine / static_cast<double>(positions.size()));
  }
}

void MeanRotation::turn(std::span<double> row) const {
  for (size_t j = 0; j < cosine_.size(); ++j) {
    double& a = row[rotation_.first_of(j)];
    double& b = row[rotation_.second_of(j)];
    const double x = a, y = b;
    a = x * cosine_[j] - y * sine_[j];
    b = x * sine_[j] + y * cosine_[j];
  }
}

}  // namespace kvsim

namespace kvsim::stages::indicator::expected_attention {

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

struct ExpectedAttention : ObservedIndicator {
  ExpectedAttention()
      : ObservedIndicator(
            {"indicator", "expected-attention",
             "softmax of the expected exp(logit) of normally distributed later queries",
             "Expected Attention; kvpress ExpectedAttentionPress",
             "expected_steps expected_variance sinks", "rope/inv_freq"},
            Axes::head, {.moves_queries = true, .cost = 1}) {}

  Table<double> observed(const EntryRequest& request, const Segment& segment) const override {
    LayerWork& work = request.work;
    const int64_t sinks = request.settings.count(keys::sinks);
    const auto positions = observing_from(segment, sinks);
    const auto later = ascending(request.settings.count(expected_steps), work.entries());
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
                   row.subspan(first - candidates.begin, last - first));
      }
      std::ranges::fill(row.first(unscored), 0.0);
      softmax(row.subspan(unscored));
    });
    return scores;
  }
};
const Register<Indicator, ExpectedAttention> registered;

}  // namespace kvsim::stages::indicator::expected_attention
