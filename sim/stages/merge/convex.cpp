#include "sim/core/parallel.hpp"
#include "sim/stages/merge/targets.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim::stages::merge::convex {
namespace {

/// KeepKV Eq. 5 with equal weights: the slot is the plain mean of all its entries so far.
class Convex : public Merge {
 public:
  Convex()
      : Merge({"merge",
               "convex",
               "the plain mean of the slot's entries",
               "KeepKV Eq. 5",
               {"merge_threshold", "merge_order"}}) {}
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
const DeclareNote convex_note{{.of = "merge=convex",
                               .source = "KeepKV Eq. 5",
                               .point = "\"existing methods\" have no single rule for weights",
                               .reading = "plain mean of the members"}};

}  // namespace
}  // namespace kvsim::stages::merge::convex
