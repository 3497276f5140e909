#include <Eigen/Cholesky>
#include <Eigen/Core>

#include "sim/core/numbers.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim::stages::merge::kinds {

const Declare cam_targets("cam_targets", "count >= 1 slots", "32",
                          "later slots among which a value is spread");

/// Spreads the value of an evicted slot over the next kept ones, in proportion to how its
/// attention compares with theirs. Keys stay, so entries count as dropped.
struct CamBase : Merge {
  using Merge::Merge;
  bool uses_attention() const override { return true; }
  virtual double amount(double chance, double draw) const = 0;

  void apply(MergeRequest& request) const override {
    const int64_t most = request.settings->count(cam_targets);
    for (MergeOwner& owner : request.owners) {
      SlotCache& cache = *owner.cache;
      std::vector<int64_t> later;  // kept slots behind the one at work, farthest first
      double attention = 0;
      size_t next = owner.evicted.size();
      std::vector<std::pair<int64_t, double>> spread(owner.evicted.size());  // targets, amount
      std::vector<std::vector<int64_t>> targets(owner.evicted.size());
      for (int64_t slot = cache.size(); slot-- > 0 && next > 0;) {
        if (owner.evicted[next - 1] != slot) {
          later.push_back(slot);
          attention += owner.attention[slot];
          continue;
        }
        --next;
        const auto count = std::min<int64_t>(most, std::ssize(later));
        if (count == 0 || attention <= 0) continue;
        const double mean = attention / static_cast<double>(later.size());
        const double chance = std::clamp(owner.attention[slot] / mean, 0.0, 1.0);
        const double draw = uniform(request.seed + 1, static_cast<uint64_t>(request.layer),
                                    static_cast<uint64_t>(cache.owner()),
                                    static_cast<uint64_t>(cache.position(slot)));
        spread[next] = {slot, amount(chance, draw) / static_cast<double>(count)};
        targets[next].assign(later.end() - count, later.end());
      }
      for (size_t x = 0; x < spread.size(); ++x)
        for (size_t at = 0; spread[x].second != 0 && at < targets[x].size(); ++at)
          mix(cache.value(targets[x][at]), 1, cache.value(spread[x].first), spread[x].second);
    }
  }
};

/// CaM as published: a draw decides.
struct Cam : CamBase {
  Cam()
      : CamBase({"cam", "values are spread over later slots, by a draw", "CaM repository",
                 "cam_targets", "query n-1"}) {}
  double amount(double chance, double draw) const override { return draw < chance ? 1 : 0; }
};

/// The expectation of the draw.
struct CamExpected : CamBase {
  CamExpected()
      : CamBase({"cam-expected", "values are spread over later slots, by the probability", "kvsim",
                 "cam_targets", "query n-1"}) {}
  double amount(double chance, double) const override { return chance; }
};

/// D2O's threshold tau of one compression: the mean best cosine over heads and evicted entries at
/// the first one of a layer, from then on the mean of that and the tau before.
double d2o_threshold(const std::vector<std::vector<Target>>& targets, MergeMemory& memory) {
  double sum = 0;
  int64_t count = 0;
  for (const auto& owner : targets)
    for (const Target& target : owner) {
      if (target.slot < 0) continue;
      sum += target.cosine;
      ++count;
    }
  if (count == 0) return memory.threshold;
  const double mean = sum / static_cast<double>(count);
  memory.threshold = memory.started ? 0.5 * memory.threshold + 0.5 * mean : mean;
  memory.started = true;
  return memory.threshold;
}

/// Weights exp(u) / E for the entries that go into one slot and exp(1) / E for the slot itself,
/// E their sum.
void merge_into(MergeOwner& owner, int64_t into,
                const std::vector<std::pair<int64_t, double>>& from) {
  SlotCache& cache = *owner.cache;
  double total = std::exp(1.0);
  for (const auto& [slot, cosine] : from) total += std::exp(cosine);
  double before = std::exp(1.0) / total;
  for (const auto& [slot, cosine] : from) {
    const double share = std::exp(cosine) / total;
    mix(cache.key(into), before, cache.key(slot), share);
    mix(cache.value(into), before, cache.value(slot), share);
    before = 1;
    join(owner, slot, into);
  }
}

struct D2o : Merge {
  D2o()
      : Merge({"d2o", "convex weights by cosine, above a threshold that follows the cosines",
               "D2O"}) {}

  void apply(MergeRequest& request) const override {
    const auto targets = nearest_kept(request);
    const double threshold = d2o_threshold(targets, *request.memory);
    for (size_t o = 0; o < targets.size(); ++o) {
      std::map<int64_t, std::vector<std::pair<int64_t, double>>> merged;  // by target
      for (size_t x = 0; x < targets[o].size(); ++x)
        if (targets[o][x].slot >= 0 && targets[o][x].cosine >= threshold)
          merged[targets[o][x].slot].emplace_back(request.owners[o].evicted[x],
                                                  targets[o][x].cosine);
      for (const auto& [into, from] : merged) merge_into(request.owners[o], into, from);
    }
  }
};

/// As published: the threshold decides by the mean over heads, for the first, second, ... evicted
/// entry of all heads at once, and the weights do not sum to 1.
struct D2oCode : Merge {
  D2oCode()
      : Merge({"d2o-code", "the same rank of all heads merges or none does; weights as coded",
               "D2O repository"}) {}

  void apply(MergeRequest& request) const override {
    const auto targets = nearest_kept(request);
    const double threshold = d2o_threshold(targets, *request.memory);
    const std::vector<uint8_t> merges = merging_ranks(targets, threshold);
    for (size_t o = 0; o < targets.size(); ++o) {
      std::map<int64_t, std::vector<size_t>> merged;  // by target: ranks
      for (size_t x = 0; x < targets[o].size(); ++x)
        if (targets[o][x].slot >= 0 && merges[x]) merged[targets[o][x].slot].push_back(x);
      for (const auto& [into, ranks] : merged)
        merge_into(request.owners[o], into, ranks, targets[o]);
    }
  }

 private:
  static std::vector<uint8_t> merging_ranks(const std::vector<std::vector<Target>>& targets,
                                            double threshold) {
    std::vector<double> sum, count;
    for (const auto& owner : targets) {
      if (owner.size() > sum.size()) sum.resize(owner.size(), 0);
      count.resize(sum.size(), 0);
      for (size_t x = 0; x < owner.size(); ++x) {
        sum[x] += owner[x].cosine;
        ++count[x];
      }
    }
    std::vector<uint8_t> merges(sum.size());
    for (size_t x = 0; x < sum.size(); ++x) merges[x] = sum[x] / count[x] >= threshold;
    return merges;
  }

  /// k <- (k + sum u_i k_i) / (1 + number of them), values alike.
  static void merge_into(MergeOwner& owner, int64_t into, const std::vector<size_t>& ranks,
                         const std::vector<Target>& targets) {
    SlotCache& cache = *owner.cache;
    const double part = 1.0 / static_cast<double>(1 + ranks.size());
    double before = part;
    for (const size_t x : ranks) {
      const int64_t from = owner.evicted[x];
      mix(cache.key(into), before, cache.key(from), targets[x].cosine * part);
      mix(cache.value(into), before, cache.value(from), targets[x].cosine * part);
      before = 1;
      join(owner, from, into);
    }
  }
};

double squared_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) {
    const double difference = static_cast<double>(a[c]) - static_cast<double>(b[c]);
    sum += difference * difference;
  }
  return sum;
}

/// Neighbours in position whose keys are most alike become one slot, until the budget is met.
class Clustering {
 public:
  explicit Clustering(const ClusterRequest& request)
      : in_(request), n_(std::ssize(request.score)) {}

  Clusters run() {
    guard();
    join_neighbours();
    collect();
    drop_smallest();
    return std::move(result_);
  }

 private:
  static constexpr int64_t kPercentNewest = 34;
  static constexpr int64_t kPercentBest = 24;

  std::span<const float> key(int64_t i) const {
    return {in_.keys + i * in_.key_dim, static_cast<size_t>(in_.key_dim)};
  }
  bool guarded(int64_t i) const { return is_guarded_[i] != 0; }

  /// The newest third and, of the rest, the best quarter of the budget (KVMerger's ratios).
  void guard() {
    is_guarded_.assign(n_, 0);
    const int64_t newest = in_.budget * kPercentNewest / 100;
    auto rest = ascending<uint32_t>(std::max<int64_t>(n_ - newest, 0));
    const auto best = std::min<int64_t>(in_.budget * kPercentBest / 100, std::ssize(rest));
    std::partial_sort(rest.begin(), rest.begin() + best, rest.end(), best_first(in_.score));
    for (int64_t x = 0; x < best; ++x) is_guarded_[rest[x]] = 1;
    for (int64_t i = std::ssize(rest); i < n_; ++i) is_guarded_[i] = 1;
    for (int64_t i = 0; i < n_; ++i)
      if (guarded(i)) result_.guarded.push_back(static_cast<uint32_t>(i));
    places_ = in_.budget - std::ssize(result_.guarded);
  }

  /// Joins pairs i, i+1 in descending cosine (ties: the more recent first) until the sets fit.
  void join_neighbours() {
    joined_.assign(n_, 0);
    std::vector<double> length(n_);
    for (int64_t i = 0; i < n_; ++i) length[i] = norm_of(key(i));
    std::vector<std::pair<double, int64_t>> pairs;
    for (int64_t i = 0; i + 1 < n_; ++i) {
      if (guarded(i) || guarded(i + 1)) continue;
      const double lengths = length[i] * length[i + 1];
      double product = 0;
      for (int64_t c = 0; c < in_.key_dim; ++c)
        product += static_cast<double>(key(i)[c]) * static_cast<double>(key(i + 1)[c]);
      pairs.emplace_back(lengths > 0 ? product / lengths : 0.0, i);
    }
    std::ranges::sort(pairs, std::greater<>());
    const int64_t sets = n_ - std::ssize(result_.guarded);
    const int64_t wanted = std::clamp<int64_t>(sets - places_, 0, std::ssize(pairs));
    for (int64_t x = 0; x < wanted; ++x) joined_[pairs[x].second] = 1;
  }

  void collect() {
    for (int64_t i = 0; i < n_;) {
      std::vector<uint32_t> set = {static_cast<uint32_t>(i)};
      for (; joined_[i]; ++i) set.push_back(static_cast<uint32_t>(i + 1));
      ++i;
      result_.pivot.push_back(*std::ranges::min_element(set, best_first(in_.score)));
      result_.sets.push_back(std::move(set));
    }
  }

  /// When no pair is left to join: sets of smallest total score go (ties: the older).
  void drop_smallest() {
    std::vector<std::pair<double, size_t>> open;  // unguarded sets
    for (size_t s = 0; s < result_.sets.size(); ++s) {
      if (guarded(result_.pivot[s])) continue;
      double total = 0;
      for (const uint32_t entry : result_.sets[s]) total += in_.score[entry];
      open.emplace_back(total, s);
    }
    const int64_t excess = std::ssize(open) - std::max<int64_t>(places_, 0);
    if (excess <= 0) return;
    std::ranges::sort(open);
    std::vector<uint8_t> gone(result_.sets.size(), 0);
    for (int64_t x = 0; x < excess; ++x) gone[open[x].second] = 1;
    Clusters rest;
    rest.guarded = std::move(result_.guarded);
    for (size_t s = 0; s < gone.size(); ++s) {
      if (gone[s]) continue;
      rest.sets.push_back(std::move(result_.sets[s]));
      rest.pivot.push_back(result_.pivot[s]);
    }
    result_ = std::move(rest);
  }

  const ClusterRequest& in_;
  int64_t n_;
  int64_t places_ = 0;
  std::vector<uint8_t> is_guarded_;
  std::vector<uint8_t> joined_;  // [i]: i and i+1 are in one set
  Clusters result_;
};

/// KVMerger. Its kernel width is circular in the paper; the first step is taken.
struct KvMerger : Merge {
  KvMerger()
      : Merge({"kvmerger",
               "neighbours of similar keys become one slot, weighted by a Gaussian around the best",
               "KVMerger"}) {}
  bool replaces_selection() const override { return true; }
  Clusters cluster(const ClusterRequest& request) const override {
    return Clustering(request).run();
  }

  /// Members of each set are the slots listed in it; evicted ones are those that no set holds or
  /// that are not its pivot.
  void apply(MergeRequest& request) const override {
    for (MergeOwner& owner : request.owners)
      for (size_t s = 0; s < owner.sets.size(); ++s)
        if (owner.sets[s].members.size() > 1) merge_set(owner, owner.sets[s]);
  }

 private:
  static void merge_set(MergeOwner& owner, const MergeOwner::Set& set) {
    SlotCache& cache = *owner.cache;
    std::vector<double> distance;
    double total = 0;
    for (const int64_t slot : set.members) {
      distance.push_back(squared_distance(cache.key(slot), cache.key(set.pivot)));
      total += distance.back();
    }
    const double variance = total / static_cast<double>(set.members.size() - 1);
    double weights = 0;
    std::vector<double> weight;
    for (const double d : distance) {
      weight.push_back(variance > 0 ? std::exp(-d / (2 * variance)) : 1.0);
      weights += weight.back();
    }
    double before = 1 / weights;  // the pivot's own weight is 1
    for (size_t m = 0; m < set.members.size(); ++m) {
      if (set.members[m] == set.pivot) continue;
      mix(cache.key(set.pivot), before, cache.key(set.members[m]), weight[m] / weights);
      mix(cache.value(set.pivot), before, cache.value(set.members[m]), weight[m] / weights);
      before = 1;
      join(owner, set.members[m], set.pivot);
    }
  }
};

const Declare fit_ridge("fit_ridge", "number > 0", "0.000001",
                        "ridge of both fits, over the mean of the normal equations' diagonal",
                        tested("0.001"));

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Floats = Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>;
constexpr double kLeast = 1e-12;  // of exp(bias), as coded

/// Least squares x of a x = y with a ridge.
Matrix solve(const Matrix& a, const Matrix& y, double ridge) {
  Matrix normal = a.transpose() * a;
  const double level = ridge * std::max(normal.diagonal().mean(), 1e-300);
  normal.diagonal().array() += level;
  return normal.llt().solve(a.transpose() * y);
}

/// exp(logit - the row's largest) of every reference query on every slot, and the sink's share.
struct Exponents {
  Matrix of_slots;       // [queries][slots]
  Eigen::VectorXd sink;  // [queries]
};

Exponents exponents(const MergeOwner& owner) {
  const SlotCache& cache = *owner.cache;
  const ReferenceQueries& reference = *owner.reference;
  Matrix keys(cache.size(), cache.key_dim());
  for (int64_t s = 0; s < cache.size(); ++s)
    for (int64_t c = 0; c < cache.key_dim(); ++c) keys(s, c) = static_cast<double>(cache.key(s)[c]);
  const Floats queries(reference.queries.data(), reference.queries.rows(), cache.key_dim());
  Exponents result{reference.scale * (queries.cast<double>() * keys.transpose()), {}};
  result.sink = Eigen::VectorXd::Zero(result.of_slots.rows());
  for (int64_t r = 0; r < result.of_slots.rows(); ++r) {
    const double sink = reference.sinks.empty()
                            ? -INFINITY
                            : static_cast<double>(reference.sinks[reference.head[r]]);
    const double largest = std::max(result.of_slots.row(r).maxCoeff(), sink);
    result.of_slots.row(r) = (result.of_slots.row(r).array() - largest).exp();
    result.sink(r) = std::exp(sink - largest);
  }
  return result;
}

/// Biases that give the kept keys the mass of all, then values that give the output of all.
void fit(MergeOwner& owner, double ridge) {
  SlotCache& cache = *owner.cache;
  std::vector<int64_t> kept;
  for (int64_t s = 0; s < cache.size(); ++s)
    if (!std::ranges::binary_search(owner.evicted, s)) kept.push_back(s);
  if (kept.empty() || owner.evicted.empty()) return;
  const Exponents all = exponents(owner);
  Matrix some = all.of_slots(Eigen::all, kept), values(cache.size(), cache.value_dim());
  for (int64_t s = 0; s < cache.size(); ++s)
    for (int64_t c = 0; c < cache.value_dim(); ++c)
      values(s, c) = static_cast<double>(cache.value(s)[c]);
  const Matrix mass = all.of_slots.rowwise().sum();
  const Matrix weight = solve(some, mass, ridge).cwiseMax(kLeast);
  some = some * weight.col(0).asDiagonal();
  const Eigen::VectorXd total = some.rowwise().sum() + all.sink;
  some = total.cwiseInverse().asDiagonal() * some;
  const Eigen::VectorXd whole = mass.col(0) + all.sink;
  const Matrix outputs = whole.cwiseInverse().asDiagonal() * (all.of_slots * values);
  const Matrix fitted = solve(some, outputs, ridge);
  for (size_t k = 0; k < kept.size(); ++k) {
    const auto row = static_cast<Eigen::Index>(k);
    for (int x = 0; x < cache.heads(); ++x) cache.set_bias(kept[k], x, std::log(weight(row, 0)));
    for (int64_t c = 0; c < cache.value_dim(); ++c)
      cache.value(kept[k])[c] = static_cast<float>(fitted(row, c));
  }
}

struct AttentionFit : Merge {
  AttentionFit()
      : Merge({"attention-fit",
               "keys stay; biases and values are fitted to what the reference queries see of all",
               "Attention Matching", "fit_ridge", "a layer without softcap"}) {}
  std::vector<std::string> votes() const override { return {"bias"}; }
  bool needs_linear_logits() const override { return true; }
  bool fits_queries() const override { return true; }

  void apply(MergeRequest& request) const override {
    const double ridge = request.settings->real(fit_ridge);
    parallel_for(std::ssize(request.owners), [&](int64_t o) { fit(request.owners[o], ridge); });
  }
};
const Register<Merge, Cam, CamExpected, D2o, D2oCode, KvMerger, AttentionFit> registered;

}  // namespace kvsim::stages::merge::kinds
