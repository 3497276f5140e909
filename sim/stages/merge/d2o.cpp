#include "sim/stages/merge/d2o.hpp"

#include <cmath>
#include <map>

#include "sim/stages/notes.hpp"

namespace kvsim {

double d2o_threshold(const std::vector<std::vector<Target>>& targets, MergeMemory& memory) {
  double sum = 0;
  int64_t count = 0;
  for (const auto& owner : targets) {
    for (const Target& target : owner) {
      if (target.slot < 0) continue;
      sum += target.cosine;
      ++count;
    }
  }
  if (count == 0) return memory.threshold;
  const double mean = sum / static_cast<double>(count);
  memory.threshold = memory.started ? 0.5 * memory.threshold + 0.5 * mean : mean;
  memory.started = true;
  return memory.threshold;
}

}  // namespace kvsim

namespace kvsim::stages::merge::d2o {
namespace {

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

class D2o : public Merge {
 public:
  D2o()
      : Merge({"merge",
               "d2o",
               "convex weights by cosine, above a threshold that follows the "
               "cosines",
               "D2O",
               {}}) {}

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
const Register<Merge, D2o> d2o;
const DeclareNote d2o_note{
    {.of = "merge=d2o",
     .source = "D2O repository",
     .point = "weights of the code do not sum to 1",
     .reading = "the paper's convex weights; `merge=d2o-code` merges as coded"}};

}  // namespace
}  // namespace kvsim::stages::merge::d2o
