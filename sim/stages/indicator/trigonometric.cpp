#include "sim/stages/indicator/indicator.hpp"

namespace kvsim::stages::indicator::trigonometric {

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
      : ObservedIndicator({"indicator", "trigonometric",
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
const Register<Indicator, Trigonometric> registered;

}  // namespace kvsim::stages::indicator::trigonometric
