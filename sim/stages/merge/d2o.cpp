#include "sim/stages/merge/merge.hpp"

namespace kvsim {

/// D2O's threshold tau of one compression: the mean best cosine over heads and evicted entries at
/// the first one of a layer, from then on the mean of that and the tau before.
double d2o_threshold(const std::vector<std::vector<Target>>& targets, MergeMemory& memory);

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

}  // namespace kvsim

namespace kvsim::stages::merge::d2o {

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
      : Merge({"merge", "d2o",
               "convex weights by cosine, above a threshold that follows the cosines", "D2O"}) {}

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
      : Merge({"merge", "d2o-code",
               "the same rank of all heads merges or none does; weights as coded",
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
const Register<Merge, D2o, D2oCode> registered;

}  // namespace kvsim::stages::merge::d2o
