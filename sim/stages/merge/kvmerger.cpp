#include "sim/stages/merge/merge.hpp"

namespace kvsim::stages::merge::kvmerger {

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
      : Merge({"merge", "kvmerger",
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
const Register<Merge, KvMerger> registered;

}  // namespace kvsim::stages::merge::kvmerger
