#include "sim/stages/merge/merge.hpp"

#include <Eigen/Core>

namespace kvsim::keys {

const Declare merge_threshold("merge_threshold", "number [-1, 1]", "0.8",
                              "cosine of keys above which an entry is merged");
const Declare merge_order(
    "merge_order", "evict-first | merge-first", "evict-first",
    "evicted entries join kept ones, or entries alike join each other before any is evicted",
    lets_nest_if(nests_at_default));

}  // namespace kvsim::keys

namespace kvsim {
namespace {

using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Keys at length 1; a zero key stays zero.
RowMatrix keys_at_length_one(const MergeFirstRequest& request) {
  const auto n = std::ssize(request.score);
  RowMatrix unit = Eigen::Map<const Floats>(request.keys, n, request.key_dim).cast<double>();
  for (int64_t i = 0; i < n; ++i) {
    const double length = unit.row(i).norm();
    if (length > 0) unit.row(i) /= length;
  }
  return unit;
}

/// The entry that each joins, or itself.
std::vector<uint32_t> join_alike(const MergeFirstRequest& request) {
  const size_t n = request.score.size();
  const RowMatrix unit = keys_at_length_one(request);
  std::vector<uint32_t> joins(n);
  for (uint32_t i = 0; i < n; ++i) joins[i] = i;
  std::vector<uint8_t> stays(n, 0);  // guarded, or joined by another
  for (const uint32_t i : request.guarded) stays[i] = 1;
  auto left = static_cast<int64_t>(n);
  for (size_t at = request.order.size(); at-- > 0 && left > request.budget;) {
    const uint32_t e = request.order[at];
    if (stays[e]) continue;
    const Eigen::VectorXd cosine = unit * unit.row(e).transpose();
    uint32_t best = e;
    double most = -std::numeric_limits<double>::infinity();
    for (uint32_t c = 0; c < n; ++c) {
      if (c == e || joins[c] != c || cosine[c] < most) continue;  // equal: the more recent
      best = c;
      most = cosine[c];
    }
    if (best == e || !(most > request.threshold)) continue;
    joins[e] = best;
    stays[best] = 1;
    --left;
  }
  return joins;
}

constexpr int64_t kBlockRows = 64;
// Float32 products find the candidates; those this close to the best are compared in float64, so
// that equal keys tie whatever the blocking of the product.
constexpr float kNear = 1e-5f;

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c)
    sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return sum;
}

double cosine(const SlotCache& cache, int64_t a, int64_t b, double length_a, double length_b) {
  const double lengths = length_a * length_b;
  return lengths > 0 ? dot(cache.key(a), cache.key(b)) / lengths : 0;
}

/// Keys of the slots divided by their lengths; rows of zeros where the length is 0.
Floats unit_keys(const SlotCache& cache, const std::vector<int64_t>& slots,
                 const std::vector<double>& length) {
  Floats unit(std::ssize(slots), cache.key_dim());
  for (int64_t r = 0; r < std::ssize(slots); ++r) {
    const auto key = cache.key(slots[r]);
    const double size = length[slots[r]];
    for (int64_t c = 0; c < std::ssize(key); ++c)
      unit(r, c) = size > 0 ? static_cast<float>(static_cast<double>(key[c]) / size) : 0.0f;
  }
  return unit;
}

}  // namespace

MergeOwner::Step& join(MergeOwner& owner, int64_t from, int64_t into) {
  SlotCache& cache = *owner.cache;
  MergeOwner::Step& step = owner.steps.emplace_back();
  step.from = from;
  step.into = into;
  step.entries_from = cache.entries(from);
  step.entries_into = cache.entries(into);
  cache.absorb(from, into);
  return step;
}

Clusters merge_first(const MergeFirstRequest& request) {
  const std::vector<uint32_t> joins = join_alike(request);
  std::map<uint32_t, std::vector<uint32_t>> members;  // by pivot; ascending
  for (uint32_t i = 0; i < joins.size(); ++i) members[joins[i]].push_back(i);
  Clusters kept;
  const auto places = static_cast<size_t>(std::max<int64_t>(0, request.budget));
  const auto keep = [&](uint32_t pivot) {
    kept.pivot.push_back(pivot);
    kept.sets.push_back(std::move(members[pivot]));
    members.erase(pivot);
  };
  for (const uint32_t i : request.guarded) {
    if (kept.pivot.size() == places) break;
    keep(i);
    kept.guarded.push_back(i);
  }
  std::ranges::sort(kept.guarded);
  std::vector<std::pair<double, uint32_t>>
      others;  // what its entries score together, and the pivot
  for (const uint32_t i : request.order) {
    const auto set = members.find(i);
    if (set == members.end()) continue;
    double sum = 0;
    for (const uint32_t entry : set->second) sum += request.score[entry];
    others.emplace_back(sum, i);
  }
  std::ranges::sort(others, std::greater<>());  // equal: the more recent
  for (const auto& [sum, pivot] : others) {
    if (kept.pivot.size() == places) break;
    if (members.contains(pivot)) keep(pivot);
  }
  return kept;
}

std::vector<Target> nearest_kept(const MergeOwner& owner) {
  const SlotCache& cache = *owner.cache;
  std::vector<Target> targets(owner.evicted.size());
  if (targets.empty()) return targets;
  if (!owner.sets.empty()) {  // chosen before selection
    for (const MergeOwner::Set& set : owner.sets)
      for (const int64_t slot : set.members) {
        if (slot == set.pivot) continue;
        const auto at = std::ranges::lower_bound(owner.evicted, slot) - owner.evicted.begin();
        targets[at] = {set.pivot, 1};
      }
    return targets;
  }
  std::vector<int64_t> kept;
  std::vector<double> length(cache.size());
  for (int64_t slot = 0; slot < cache.size(); ++slot) {
    length[slot] = norm_of(cache.key(slot));
    if (!std::ranges::binary_search(owner.evicted, slot)) kept.push_back(slot);
  }
  if (kept.empty()) return targets;
  const Floats stay = unit_keys(cache, kept, length);
  const Floats leave = unit_keys(cache, owner.evicted, length);
  Floats products;
  for (int64_t first = 0; first < leave.rows(); first += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, leave.rows() - first);
    products.noalias() = leave.middleRows(first, rows) * stay.transpose();
    for (int64_t r = 0; r < rows; ++r) {
      const auto e = static_cast<size_t>(first + r);
      const float near = products.row(r).maxCoeff() - kNear;
      for (int64_t c = 0; c < std::ssize(kept); ++c) {
        if (products(r, c) < near) continue;
        const double u = cosine(cache, owner.evicted[e], kept[c], length[owner.evicted[e]],
                                length[kept[c]]);
        if (targets[e].slot < 0 || u >= targets[e].cosine) targets[e] = {kept[c], u};
      }
    }
  }
  return targets;
}

std::vector<std::vector<Target>> nearest_kept(const MergeRequest& request) {
  std::vector<std::vector<Target>> all(request.owners.size());
  constexpr int64_t kWorthThreads = int64_t{1} << 22;  // about a millisecond of one core
  int64_t work = 0;
  for (const MergeOwner& owner : request.owners)
    work += std::ssize(owner.evicted) * owner.cache->size() * owner.cache->key_dim();
  if (work < kWorthThreads) {  // a few entries of a decoding step
    for (size_t o = 0; o < all.size(); ++o) all[o] = nearest_kept(request.owners[o]);
    return all;
  }
  parallel_for(std::ssize(all), [&](int64_t o) { all[o] = nearest_kept(request.owners[o]); });
  return all;
}

void mix(std::span<float> x, double a, std::span<const float> y, double b) {
  for (size_t c = 0; c < x.size(); ++c)
    x[c] = static_cast<float>(a * static_cast<double>(x[c]) + b * static_cast<double>(y[c]));
}

double norm_of(std::span<const float> x) { return std::sqrt(dot(x, x)); }

void merge_pairs(MergeRequest& request,
                 const std::function<void(MergeOwner& owner, int64_t from, int64_t into)>& merge,
                 bool at_threshold) {
  const double threshold = request.settings->real(keys::merge_threshold);
  const auto targets = nearest_kept(request);
  for (size_t o = 0; o < targets.size(); ++o)
    for (size_t x = 0; x < targets[o].size(); ++x)
      if (const auto [into, cosine] = targets[o][x];
          into >= 0 && (cosine > threshold || (at_threshold && cosine == threshold)))
        merge(request.owners[o], request.owners[o].evicted[x], into);
}

}  // namespace kvsim

namespace kvsim::stages::merge::merge {

const Declare merge("merge", "kind", "drop", "what becomes of entries that lose their place");
static bool estimates(const Kind& kind) {
  return dynamic_cast<const Merge&>(kind).estimates() != EstimateLines::none;
}
const Declare score_estimate("score_estimate", "kind", "ema",
                             "how the scores of the next queries are predicted",
                             only_with({"merge", estimates}));

struct Drop : Merge {
  Drop() : Merge({"drop", "nothing remains of them", ""}) {}
  bool merges() const override { return false; }
  void apply(MergeRequest&) const override {}
};

/// KeepKV Eq. 5 with equal weights: the slot is the plain mean of all its entries so far.
struct Convex : Merge {
  Convex()
      : Merge({"convex", "the plain mean of the slot's entries", "KeepKV Eq. 5",
               "merge_threshold merge_order"}) {}
  std::vector<std::string> votes() const override { return {"none", "count"}; }

  void apply(MergeRequest& request) const override {
    merge_pairs(request, [](MergeOwner& owner, int64_t from, int64_t into) {
      SlotCache& cache = *owner.cache;
      const double all = cache.entries(from) + cache.entries(into);
      const double share = cache.entries(from) / all;
      mix(cache.key(into), 1 - share, cache.key(from), share);
      mix(cache.value(into), 1 - share, cache.value(from), share);
      join(owner, from, into);
    });
  }
};

/// v <- (v_c + sum w_i v_i) / (1 + sum w_i), w_i = u_i |v_i| / (|v_i| + |v_c|) with the values as
/// they were before; keys stay, so entries count as dropped.
struct ValueFold : Merge {
  ValueFold()
      : Merge({"value-fold", "values join the slot of the nearest key, keys do not", "kvpress"}) {}

  void apply(MergeRequest& request) const override {
    const auto targets = nearest_kept(request);
    for (size_t o = 0; o < targets.size(); ++o) {
      std::map<int64_t, std::vector<size_t>> folded;  // by target
      for (size_t x = 0; x < targets[o].size(); ++x)
        if (targets[o][x].slot >= 0 && targets[o][x].cosine > 0)
          folded[targets[o][x].slot].push_back(x);
      for (const auto& [into, ranks] : folded) fold(request.owners[o], into, ranks, targets[o]);
    }
  }

 private:
  static void fold(MergeOwner& owner, int64_t into, const std::vector<size_t>& ranks,
                   const std::vector<Target>& targets) {
    SlotCache& cache = *owner.cache;
    const double length = norm_of(cache.value(into));
    std::vector<double> weight;
    double total = 1;
    for (const size_t x : ranks) {
      const double own = norm_of(cache.value(owner.evicted[x]));
      weight.push_back(own + length > 0 ? targets[x].cosine * own / (own + length) : 0);
      total += weight.back();
    }
    double before = 1 / total;
    for (size_t r = 0; r < ranks.size(); ++r) {
      mix(cache.value(into), before, cache.value(owner.evicted[ranks[r]]), weight[r] / total);
      before = 1;
    }
  }
};
const Register<Merge, Drop, Convex, ValueFold> registered;

constexpr double kWordBytes = 4;

const Declare votes("votes", "kind", "none",
                    "what attention knows of the entries in a slot; follows `merge`");

struct NoVotes : Votes {
  NoVotes() : Votes({"none", "every slot counts as one entry", ""}) {}
  bool weighs() const override { return false; }
  double log_weight(const SlotCache&, int64_t, int) const override { return 0; }
  double side_bytes(int) const override { return 0; }
};

struct Count : Votes {
  Count() : Votes({"count", "logits get ln p, p the entries in the slot", "KeepKV Eq. 6"}) {}
  double log_weight(const SlotCache& cache, int64_t slot, int) const override {
    return std::log(cache.entries(slot));
  }
  double weight(double entries) const override { return entries; }
  double side_bytes(int) const override { return kWordBytes; }
};

struct Bias : Votes {
  Bias() : Votes({"bias", "logits get a real number per query head", "kvsim"}) {}
  double log_weight(const SlotCache& cache, int64_t slot, int x) const override {
    return cache.bias(slot, x);
  }
  double side_bytes(int heads) const override { return kWordBytes * heads; }
};
const Register<Votes, NoVotes, Count, Bias> votes_registered;

}  // namespace kvsim::stages::merge::merge
