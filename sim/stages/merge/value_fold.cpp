#include <map>

#include "sim/stages/merge/targets.hpp"

namespace kvsim::stages::merge::value_fold {
namespace {

/// v <- (v_c + sum w_i v_i) / (1 + sum w_i), w_i = u_i |v_i| / (|v_i| + |v_c|) with the values as
/// they were before; keys stay, so entries count as dropped.
class ValueFold : public Merge {
 public:
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
const Register<Merge, ValueFold> value_fold;

}  // namespace
}  // namespace kvsim::stages::merge::value_fold
