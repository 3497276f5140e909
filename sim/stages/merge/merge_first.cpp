#include "sim/stages/merge/merge_first.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <limits>
#include <map>

#include "sim/stages/notes.hpp"

namespace kvsim {
namespace keys {

const Declare merge_order(
    "merge_order", "evict-first | merge-first", "evict-first",
    "evicted entries join kept ones, or entries alike join each other before any is evicted",
    lets_nest_if(nests_at_default));

}  // namespace keys

namespace {

const DeclareNote merge_order_note(
    "merge_order", "KeepKV 3.3",
    "\"first merging based on key similarity and then applying the eviction strategy\" is one "
    "sentence: which entries merge, and how far, is not said",
    "the lowest-ranked entry joins the one of the most similar key, kept later or not, if the "
    "cosine is above the threshold; then the next, until the budget is met or all were asked; "
    "slots left over are evicted by the sum of their entries' scores");

using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Keys at length 1; a zero key stays zero.
RowMatrix keys_at_length_one(const MergeFirstRequest& request) {
  const auto n = static_cast<int64_t>(request.score.size());
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
