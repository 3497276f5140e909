#include "sim/stages/merge/merge.hpp"

#include <Eigen/Core>

namespace kvsim::stages::merge::value_fold {

/// v <- (v_c + sum w_i v_i) / (1 + sum w_i), w_i = u_i |v_i| / (|v_i| + |v_c|) with the values as
/// they were before; keys stay, so entries count as dropped.
struct ValueFold : Merge {
  ValueFold()
      : Merge({"merge", "value-fold", "values join the slot of the nearest key, keys do not",
               "kvpress"}) {}

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
const Register<Merge, ValueFold> registered;

}  // namespace kvsim::stages::merge::value_fold

namespace kvsim::stages::merge::votes {

constexpr double kWordBytes = 4;

const Declare votes("votes", "kind", "none",
                    "what attention knows of the entries in a slot; follows `merge`");

struct NoVotes : Votes {
  NoVotes() : Votes({"votes", "none", "every slot counts as one entry", ""}) {}
  bool weighs() const override { return false; }
  double log_weight(const SlotCache&, int64_t, int) const override { return 0; }
  double side_bytes(int) const override { return 0; }
};

struct Count : Votes {
  Count()
      : Votes({"votes", "count", "logits get ln p, p the entries in the slot", "KeepKV Eq. 6"}) {}
  double log_weight(const SlotCache& cache, int64_t slot, int) const override {
    return std::log(cache.entries(slot));
  }
  double weight(double entries) const override { return entries; }
  double side_bytes(int) const override { return kWordBytes; }
};

struct Bias : Votes {
  Bias() : Votes({"votes", "bias", "logits get a real number per query head", "kvsim"}) {}
  double log_weight(const SlotCache& cache, int64_t slot, int x) const override {
    return cache.bias(slot, x);
  }
  double side_bytes(int heads) const override { return kWordBytes * heads; }
};
const Register<Votes, NoVotes, Count, Bias> registered;

}  // namespace kvsim::stages::merge::votes

namespace kvsim {

const Votes& votes_of(const Settings& settings) { return chosen<Votes>(settings); }

void SlotCache::absorb(int64_t from, int64_t into) {
  const auto listed = [this](int64_t slot) {
    const auto& entries = members(slot);
    return entries.empty() ? std::vector<uint32_t>{static_cast<uint32_t>(position(slot))} : entries;
  };
  const std::vector<uint32_t> a = listed(from);
  const std::vector<uint32_t> b = listed(into);
  std::vector<uint32_t> all;
  all.reserve(a.size() + b.size());
  std::ranges::merge(a, b, std::back_inserter(all));
  members_[into] = std::move(all);
}

void SlotCache::set_bias(int64_t slot, int x, double bias) {
  if (bias_.empty()) bias_.assign(size() * heads_, 0.0);
  bias_[slot * heads_ + x] = bias;
}

void SlotCache::reserve(int64_t slots) {
  const auto count = static_cast<size_t>(slots);
  position_.reserve(count);
  row_.reserve(count);
  k_.reserve(count * width(key_dim_));
  v_.reserve(count * width(value_dim_));
  members_.reserve(count);
}

void SlotCache::append(int64_t position) {
  row_.push_back(size());
  position_.push_back(position);
  k_.resize(k_.size() + width(key_dim_));
  v_.resize(v_.size() + width(value_dim_));
  members_.emplace_back();
  if (!bias_.empty()) bias_.insert(bias_.end(), heads_, 0.0);
  if (estimates_) estimates_->append();
}

void SlotCache::erase(std::span<const int64_t> slots) {
  if (slots.empty()) return;
  std::vector<int64_t> gaps;
  for (const int64_t slot : slots) gaps.push_back(row(slot));
  std::ranges::sort(gaps);
  erase_rows(position_, 1, slots);
  erase_rows(row_, 1, slots);
  fill_gaps(gaps);
  erase_rows(members_, 1, slots);
  if (!bias_.empty()) erase_rows(bias_, heads_, slots);
  if (estimates_) estimates_->erase(slots);
}

/// Rows behind the number of slots move to the gaps before it.
void SlotCache::fill_gaps(std::span<const int64_t> gaps) {
  auto gap = gaps.begin();
  const auto last = std::ranges::lower_bound(gaps, size());
  for (auto row = row_.begin(); gap != last; ++row) {
    if (*row < size()) continue;
    std::copy_n(k_.data() + *row * key_dim_, key_dim_, k_.data() + *gap * key_dim_);
    std::copy_n(v_.data() + *row * value_dim_, value_dim_, v_.data() + *gap * value_dim_);
    *row = *gap++;
  }
  k_.resize(position_.size() * width(key_dim_));
  v_.resize(position_.size() * width(value_dim_));
}

namespace keys {

const Declare merge_threshold("merge_threshold", "number [-1, 1]", "0.8",
                              "cosine of keys above which an entry is merged");

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::merge::merge {

const Declare merge("merge", "kind", "drop", "what becomes of entries that lose their place");
const Declare score_estimate("score_estimate", "kind", "ema",
                             "how the scores of the next queries are predicted",
                             only_with({"merge", [](const Kind& kind) {
                                          return dynamic_cast<const Merge&>(kind).estimates() !=
                                                 EstimateLines::none;
                                        }}));

}  // namespace kvsim::stages::merge::merge

namespace kvsim {

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

namespace keys {

const Declare merge_order(
    "merge_order", "evict-first | merge-first", "evict-first",
    "evicted entries join kept ones, or entries alike join each other before any is evicted",
    lets_nest_if(nests_at_default));

}  // namespace keys

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

}  // namespace

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

}  // namespace kvsim
