#include <Eigen/Cholesky>
#include <numbers>

#include "sim/core/numbers.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim::stages::indicator::compactor {

const Declare compactor_chunk("compactor_chunk", "count >= 1 entries", "256",
                              "entries among which attention without a mask runs",
                              tested("1 5 100"));
const Declare compactor_sketch("compactor_sketch", "count >= 0 dimensions", "48",
                               "random directions that leverage is computed in; 0: the keys' own",
                               tested("0 3"));
const Declare compactor_blend(
    "compactor_blend", "number >= 0 or none", "none",
    "weight of leverage beside attention; none: the share that is dropped", tested("0 0.4"));

constexpr double kRidge = 0.01;  // added to the Gram matrix, as coded
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stored = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix widened(const Tensor& tensor, int head, Range rows) {
  Table<float> stored(rows.size(), tensor.dim(2));
  tensor.read(head, rows.begin, rows.end, stored.data());
  return Eigen::Map<const Stored>(stored.data(), stored.rows(), stored.columns()).cast<double>();
}

/// [d][count] normal numbers of variance 1/count.
Matrix random_directions(const EntryRequest& request, int kv_head, int64_t size, int64_t count) {
  Matrix directions(size, count);
  const auto draw = [&](int64_t at) {
    return uniform(request.seed + 2, static_cast<uint64_t>(request.work.layer()),
                   static_cast<uint64_t>(kv_head), static_cast<uint64_t>(at));
  };
  for (int64_t at = 0; at < size * count; ++at)
    directions.data()[at] = std::sqrt(-2 * std::log1p(-draw(2 * at)) / static_cast<double>(count)) *
                            std::cos(2 * std::numbers::pi * draw(2 * at + 1));
  return directions;
}

/// x (X^T X + 0.01)^-1 x^T of every row x of X: keys before their rotation, less their mean.
std::vector<double> leverages(const EntryRequest& request, int kv_head, Range entries) {
  const LayerWork& work = request.work;
  const Table<float> keys = unrotated_keys(work, kv_head, entries);
  Matrix x = Eigen::Map<const Stored>(keys.data(), keys.rows(), keys.columns()).cast<double>();
  x.rowwise() -= Eigen::RowVectorXd(x.colwise().mean());
  const int64_t count = request.settings.count(compactor_sketch);
  if (count > 0) x = (x * random_directions(request, kv_head, x.cols(), count)).eval();
  Matrix gram = x.transpose() * x;
  gram.diagonal().array() += kRidge;
  const Matrix solved = gram.llt().solve(x.transpose());  // [d][entries]
  const Eigen::VectorXd leverage = x.cwiseProduct(solved.transpose()).rowwise().sum();
  std::vector<double> out(x.rows());
  for (int64_t i = 0; i < x.rows(); ++i) out[i] = std::max(leverage[i], 0.0);
  return out;
}

/// Sums over queries of a chunk of the softmax of bare q.k over its keys, mean over the heads. A
/// short chunk is filled up with keys and queries of zeros.
void add_chunk_attention(const LayerWork& work, int kv_head, Range chunk, int64_t size,
                         std::span<const int64_t> positions, std::span<double> out) {
  const Matrix keys = widened(work.trace().k, kv_head, chunk);
  const int64_t filled = size - chunk.size();
  const std::vector<int64_t> stored = stored_queries(work, positions, false);
  std::vector<float> query(keys.cols());
  for (double& x : out) x += static_cast<double>(filled) / static_cast<double>(size);
  for (int head = kv_head * work.group_size(); head < (kv_head + 1) * work.group_size(); ++head)
    for (const int64_t at : stored) {
      work.trace().q.read(head, at, at + 1, query.data());
      const Eigen::VectorXd q =
          Eigen::Map<const Eigen::VectorXf>(query.data(), keys.cols()).cast<double>();
      Eigen::ArrayXd weight = (keys * q).array();
      const double top = std::max(weight.maxCoeff(), filled > 0 ? 0.0 : -INFINITY);
      weight = (weight - top).exp();
      const double sum = weight.sum() + static_cast<double>(filled) * std::exp(-top);
      for (int64_t i = 0; i < std::ssize(out); ++i) out[i] += weight[i] / sum / work.group_size();
    }
}

/// Mean of three neighbours; what is outside counts as 0.
void pool(std::span<double> row) {
  double before = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const double own = row[i];
    row[i] = (before + own + (i + 1 < row.size() ? row[i + 1] : 0)) / 3;
    before = own;
  }
}

/// Less the mean of all, over their standard deviation (divisor: their number - 1).
void standardize_layer(Table<double>& x) {
  const std::span<double> all{x.data(), static_cast<size_t>(x.rows() * x.columns())};
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) /
                      static_cast<double>(all.size());
  double squares = 0;
  for (const double value : all) squares += (value - mean) * (value - mean);
  const double deviation = all.size() > 1 ? std::sqrt(squares / static_cast<double>(all.size() - 1))
                                          : 0;
  for (double& value : all) value = (value - mean) / std::max(deviation, 1e-6);
}

struct Compactor : ObservedIndicator, FollowsBudget {
  Compactor()
      : ObservedIndicator(
            {"indicator", "compactor",
             "leverage of keys before their rotation, and attention in chunks without a mask",
             "Compactor; kvpress CompactorPress",
             "compactor_chunk compactor_sketch compactor_blend sinks recent", "rope/inv_freq"},
            Axes::group, {.moves_queries = true, .cost = 2}) {}
  bool follows_budget(const Settings& settings) const override {
    return settings.is_none(compactor_blend);
  }
  bool nests(const Settings& settings) const override { return !follows_budget(settings); }

  Table<double> observed(const EntryRequest& request, const Segment& segment) const override {
    LayerWork& work = request.work;
    const Range scored = scored_entries(request.settings, segment.candidates);
    Table<double> scores(work.kv_heads(), segment.candidates.size());
    if (scored.size() == 0) return scores;
    Table<double> leverage(work.kv_heads(), scored.size()), attention = leverage;
    const Table<float>& norms = work.value_norms(Norm::l2);
    parallel_for(work.kv_heads(), [&](int64_t kv_head) {
      std::ranges::copy(leverages(request, static_cast<int>(kv_head), scored),
                        leverage.row(kv_head).begin());
      attend(request, segment, static_cast<int>(kv_head), scored, norms.row(kv_head),
             attention.row(kv_head));
    });
    standardize_layer(leverage);
    standardize_layer(attention);
    const double blend = request.settings.is_none(compactor_blend)
                             ? request.dropped
                             : request.settings.real(compactor_blend);
    double top = -INFINITY;
    for (int64_t h = 0; h < scores.rows(); ++h)
      for (int64_t i = 0; i < scored.size(); ++i)
        top = std::max(top, attention(h, i) += blend * leverage(h, i));
    for (int64_t h = 0; h < scores.rows(); ++h) {
      std::ranges::fill(scores.row(h), top);  // sinks and the newest
      std::ranges::copy(attention.row(h),
                        scores.row(h).begin() + (scored.begin - segment.candidates.begin));
    }
    return scores;
  }

 private:
  /// Candidates without the first `sinks` and the last `recent` of them.
  static Range scored_entries(const Settings& settings, Range candidates) {
    const int64_t sinks = std::min(settings.count(keys::sinks), candidates.size());
    const int64_t recent = settings.is_fraction(keys::recent) ? 0 : settings.count(keys::recent);
    return {candidates.begin + sinks, candidates.end - std::min(recent, candidates.size() - sinks)};
  }

  static void attend(const EntryRequest& request, const Segment& segment, int kv_head, Range scored,
                     std::span<const float> norms, std::span<double> out) {
    LayerWork& work = request.work;
    const int64_t size = request.settings.count(compactor_chunk);
    for (int64_t begin = scored.begin; begin < scored.end; begin += size) {
      const Range chunk{begin, std::min(scored.end, begin + size)};
      const auto first = std::ranges::lower_bound(segment.positions, chunk.begin);
      const auto last = std::ranges::lower_bound(segment.positions, chunk.end);
      add_chunk_attention(work, kv_head, chunk, size, {first, last},
                          out.subspan(begin - scored.begin, chunk.size()));
    }
    for (size_t i = 0; i < out.size(); ++i)
      out[i] *= static_cast<double>(norms[static_cast<size_t>(scored.begin) + i]);
    pool(out);
  }
};
const Register<Indicator, Compactor> registered;

}  // namespace kvsim::stages::indicator::compactor
