// Kinds in which the prompt's queries stand in for later ones, or whose keys lose their rotation.
#include <Eigen/Cholesky>
#include <numbers>

#include "sim/core/numbers.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim::stages::indicator::turned_kinds {

/// The observing queries of a segment from position `first` on; all of them where there are none.
std::span<const int64_t> observing_from(const Segment& segment, int64_t first) {
  const auto begin = std::ranges::lower_bound(segment.positions, first);
  if (begin == segment.positions.end()) return segment.positions;
  return {begin, segment.positions.end()};
}

/// Queries of a head at these positions as they were before their rotation, but for its factor:
/// [positions][d].
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

/// Keys of a KV head as they were before their rotation: [entries][d].
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

/// The mean of rotations by several numbers of positions. It is linear, but no rotation itself.
class MeanRotation {
 public:
  MeanRotation(const Rotation& rotation, std::span<const int64_t> positions) : rotation_(rotation) {
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
  void turn(std::span<double> row) const {
    for (size_t j = 0; j < cosine_.size(); ++j) {
      double& a = row[rotation_.first_of(j)];
      double& b = row[rotation_.second_of(j)];
      const double x = a, y = b;
      a = x * cosine_[j] - y * sine_[j];
      b = x * sine_[j] + y * cosine_[j];
    }
  }

 private:
  const Rotation& rotation_;
  std::vector<double> cosine_, sine_;  // [r], means over the positions
};

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stored = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

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
            {"compactor",
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

const Declare expected_steps("expected_steps", "count >= 1 tokens", "512",
                             "later positions over which the rotation is averaged", tested("1 9"));
const Declare expected_variance("expected_variance", "flag", "yes",
                                "the covariance of the queries counts, too");

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
            {"expected-attention",
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

const Declare trigonometric_reach(
    "trigonometric_reach", "count >= 1 tokens", "65536",
    "largest of the distances 1, 2, 4, ... ahead at which a key is looked at", tested("1 20"));

/// Centre of a head's queries: their mean, turned to the later positions, and by how much the mean
/// length of each pair of dimensions exceeds the length of the mean.
struct QueryCentre {
  std::vector<double> mean;    ///< [d], turned
  std::vector<double> excess;  ///< [r] E|q_f| - |E q_f|
};

/// The two numbers of pair j.
template <class Row>
std::pair<double, double> pair_of(const Rotation& rotation, const Row& row, size_t j) {
  return {static_cast<double>(row[rotation.first_of(j)]),
          static_cast<double>(row[rotation.second_of(j)])};
}

template <class Row>
double pair_length(const Rotation& rotation, const Row& row, size_t j) {
  const auto [a, b] = pair_of(rotation, row, j);
  return std::hypot(a, b);
}

QueryCentre centre_of(const Rotation& rotation, const Table<float>& queries,
                      const MeanRotation& mean_rotation) {
  QueryCentre centre{std::vector<double>(queries.columns(), 0.0),
                     std::vector<double>(rotation.pairs(), 0.0)};
  const double share = 1 / static_cast<double>(queries.rows());
  for (int64_t r = 0; r < queries.rows(); ++r) {
    const auto q = queries.row(r);
    for (size_t c = 0; c < q.size(); ++c) centre.mean[c] += share * static_cast<double>(q[c]);
    for (size_t j = 0; j < centre.excess.size(); ++j)
      centre.excess[j] += share * pair_length(rotation, q, j);
  }
  for (size_t j = 0; j < centre.excess.size(); ++j)
    centre.excess[j] -= pair_length(rotation, centre.mean, j);
  mean_rotation.turn(centre.mean);
  return centre;
}

/// Less its mean, over its standard deviation (divisor: its size; at least 1e-6).
void standardize(std::span<double> row) {
  const auto count = static_cast<double>(row.size());
  double mean = 0, squares = 0;
  for (const double x : row) mean += x / count;
  for (const double x : row) squares += (x - mean) * (x - mean) / count;
  const double deviation = std::max(std::sqrt(squares), 1e-6);
  for (double& x : row) x = (x - mean) / deviation;
}

/// Distances 1, 2, 4, ... counted from `end`.
std::vector<int64_t> positions_ahead(const Settings& settings, int64_t end) {
  std::vector<int64_t> ahead;
  for (int64_t distance = 1; distance <= settings.count(trigonometric_reach); distance *= 2)
    ahead.push_back(end + distance);
  return ahead;
}

/// Scores of these keys [slots][d], before they are standardised.
void score_keys(const Rotation& rotation, const QueryCentre& centre, std::span<const float> keys,
                std::span<double> out) {
  const size_t dim = centre.mean.size();
  for (size_t s = 0; s < out.size(); ++s) {
    const auto key = keys.subspan(s * dim, dim);
    out[s] = 0;
    for (size_t c = 0; c < dim; ++c) out[s] += centre.mean[c] * static_cast<double>(key[c]);
    for (size_t j = 0; j < centre.excess.size(); ++j)
      out[s] += centre.excess[j] * pair_length(rotation, key, j);
  }
}

/// While decoding: centres of all queries that came so far.
struct RunningCentres : SlotScorer {
  RunningCentres(const LayerWork& work, const Settings& settings, int heads)
      : rotation_(work.rotation()), settings_(settings), heads_(heads) {}

  void see(int x, std::span<const float> query, int64_t position) override {
    Sums& sums = heads_[x];
    std::vector<float> turned(query.begin(), query.end());
    RotationMemory memory;
    memory.rotate(rotation_, -position, turned);
    sums.query.resize(turned.size(), 0.0);
    sums.length.resize(rotation_.pairs(), 0.0);
    for (size_t c = 0; c < turned.size(); ++c) sums.query[c] += static_cast<double>(turned[c]);
    for (size_t j = 0; j < sums.length.size(); ++j)
      sums.length[j] += pair_length(rotation_, turned, j);
    ++sums.count;
  }

  void score(const SlotsToScore& slots, int x, std::span<double> out) const override {
    const Sums& sums = heads_[x];
    QueryCentre centre{sums.query, sums.length};
    for (double& value : centre.mean) value /= static_cast<double>(sums.count);
    for (size_t j = 0; j < centre.excess.size(); ++j)
      centre.excess[j] = centre.excess[j] / static_cast<double>(sums.count) -
                         pair_length(rotation_, centre.mean, j);
    MeanRotation(rotation_, positions_ahead(settings_, slots.now + 1)).turn(centre.mean);
    score_keys(rotation_, centre, slots.keys, out);
    standardize(out);
  }

 private:
  struct Sums {
    std::vector<double> query;   // [d], before rotation
    std::vector<double> length;  // [r] of its pairs
    int64_t count = 0;
  };
  const Rotation& rotation_;
  const Settings& settings_;
  std::vector<Sums> heads_;
};

struct Trigonometric : ObservedIndicator, FollowsQueries {
  Trigonometric()
      : ObservedIndicator({"trigonometric",
                           "the mean query's logit at distances ahead, and the pairs' mean lengths",
                           "TriAttention", "trigonometric_reach", "rope/inv_freq"},
                          Axes::head, {.moves_queries = true}) {}
  std::unique_ptr<SlotScorer> follow_queries(const LayerWork& work, const Settings& settings,
                                             int heads) const override {
    return std::make_unique<RunningCentres>(work, settings, heads);
  }

  Table<double> observed(const EntryRequest& request, const Segment& segment) const override {
    LayerWork& work = request.work;
    const MeanRotation rotation(work.rotation(), positions_ahead(request.settings, work.entries()));
    const Range candidates = segment.candidates;
    Table<double> scores(work.query_heads(), candidates.size());
    parallel_for(work.query_heads(), [&](int64_t head) {
      const QueryCentre centre = centre_of(
          work.rotation(), unrotated_queries(work, static_cast<int>(head), segment.positions),
          rotation);
      std::vector<float> keys(static_cast<size_t>(candidates.size()) * centre.mean.size());
      work.trace().k.read(head / work.group_size(), candidates.begin, candidates.end, keys.data());
      score_keys(work.rotation(), centre, keys, scores.row(head));
      standardize(scores.row(head));
    });
    return scores;
  }
};
const Register<Indicator, Compactor, ExpectedAttention, Trigonometric> registered;

}  // namespace kvsim::stages::indicator::turned_kinds
