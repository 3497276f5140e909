#include <Eigen/Core>

#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

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
Matrix unit_keys(const SlotCache& cache, const std::vector<int64_t>& slots,
                 const std::vector<double>& length) {
  Matrix unit(std::ssize(slots), cache.key_dim());
  for (int64_t r = 0; r < std::ssize(slots); ++r) {
    const auto key = cache.key(slots[r]);
    const double size = length[slots[r]];
    for (int64_t c = 0; c < std::ssize(key); ++c)
      unit(r, c) = size > 0 ? static_cast<float>(static_cast<double>(key[c]) / size) : 0.0f;
  }
  return unit;
}

}  // namespace

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
  const Matrix stay = unit_keys(cache, kept, length);
  const Matrix leave = unit_keys(cache, owner.evicted, length);
  Matrix products;
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

}  // namespace kvsim

namespace kvsim::stages::merge::targets {

struct Drop : Merge {
  Drop() : Merge({"merge", "drop", "nothing remains of them", ""}) {}
  bool merges() const override { return false; }
  void apply(MergeRequest&) const override {}
};

/// KeepKV Eq. 5 with equal weights: the slot is the plain mean of all its entries so far.
struct Convex : Merge {
  Convex()
      : Merge({"merge", "convex", "the plain mean of the slot's entries", "KeepKV Eq. 5",
               "merge_threshold merge_order"}) {}
  std::vector<std::string> votes() const override { return {"none", "count"}; }

  void apply(MergeRequest& request) const override {
    const double threshold = request.settings->real(keys::merge_threshold);
    const auto targets = nearest_kept(request);
    for (size_t o = 0; o < targets.size(); ++o) {
      MergeOwner& owner = request.owners[o];
      SlotCache& cache = *owner.cache;
      for (size_t x = 0; x < targets[o].size(); ++x) {
        const auto [into, cosine] = targets[o][x];
        if (into < 0 || !(cosine > threshold)) continue;
        const int64_t from = owner.evicted[x];
        const double all = cache.entries(from) + cache.entries(into);
        const double share = cache.entries(from) / all;
        mix(cache.key(into), 1 - share, cache.key(from), share);
        mix(cache.value(into), 1 - share, cache.value(from), share);
        join(owner, from, into);
      }
    }
  }
};
const Register<Merge, Drop, Convex> registered;

}  // namespace kvsim::stages::merge::targets
