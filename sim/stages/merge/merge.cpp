#include "sim/stages/merge/merge.hpp"

#include "sim/core/parallel.hpp"
#include "sim/stages/merge/targets.hpp"
#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace keys {

const Declare merge_threshold("merge_threshold", "number [-1, 1]", "0.8",
                              "cosine of keys above which an entry is merged");

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::merge::merge {
namespace {

const Declare merge("merge", "kind", "drop", "what becomes of entries that lose their place");
const Declare score_estimate("score_estimate", "kind", "ema",
                             "how the scores of the next queries are predicted",
                             only_with({"merge", [](const Kind& kind) {
                                          return dynamic_cast<const Merge&>(kind).estimates() !=
                                                 EstimateLines::none;
                                        }}));

}  // namespace
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

}  // namespace kvsim

namespace kvsim::stages::merge::drop {
namespace {

struct Drop : Merge {
  Drop() : Merge({"merge", "drop", "nothing remains of them", ""}) {}
  bool merges() const override { return false; }
  void apply(MergeRequest&) const override {}
};
const Register<Merge, Drop> drop;

/// KeepKV Eq. 5 with equal weights: the slot is the plain mean of all its entries so far.
class Convex : public Merge {
 public:
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
const Register<Merge, Convex> convex;
const DeclareNote convex_note("merge=convex", "KeepKV Eq. 5",
                              "\"existing methods\" have no single rule for weights",
                              "plain mean of the members");

}  // namespace
}  // namespace kvsim::stages::merge::drop
