#include <cmath>
#include <limits>

#include "sim/core/log_sum.hpp"
#include "sim/stages/merge/targets.hpp"

namespace kvsim::stages::merge::keepkv_bias {
namespace {

/// Merges the pairs of one owner. Every query head keeps the mass of the pair at its own estimate
/// by a bias of its own; the shared key and value lie where the heads that attend to the pair most
/// want them.
class BiasMerge {
 public:
  explicit BiasMerge(MergeOwner& owner) : owner_(owner), cache_(*owner.cache) {
    for (int x = 0; x < cache_.heads(); ++x) {
      double total = -std::numeric_limits<double>::infinity();
      for (int64_t slot = 0; slot < cache_.size(); ++slot) total = log_add(total, mass(slot, x));
      log_total_.push_back(total);
    }
  }

  void merge(int64_t from, int64_t into) {
    const double share = common_share(from, into);
    const double level_from = level_of(from, 0);
    const double level_into = level_of(into, 0);
    for (int x = 0; x < cache_.heads(); ++x) {
      const double level = share * level_of(from, x) + (1 - share) * level_of(into, x);
      const double both = log_add(mass(from, x), mass(into, x));
      cache_.set_bias(into, x, both - level);
      cache_.estimates()->restart(into, x, level);
    }
    mix(cache_.key(into), 1 - share, cache_.key(from), share);
    mix(cache_.value(into), 1 - share, cache_.value(from), share);
    MergeOwner::Step& step = join(owner_, from, into);
    step.log_score_from = level_from;
    step.log_score_into = level_into;
  }

 private:
  double level_of(int64_t slot, int x) const { return cache_.estimates()->log_score(slot, x); }
  double mass(int64_t slot, int x) const { return cache_.bias(slot, x) + level_of(slot, x); }

  /// sigma = sum over heads of (r_e + r_c) r_e / sum of (r_e + r_c)^2, r shares of attention.
  double common_share(int64_t from, int64_t into) const {
    double weighted = 0;
    double total = 0;
    for (int x = 0; x < cache_.heads(); ++x) {
      const double r_e = std::exp(mass(from, x) - log_total_[static_cast<size_t>(x)]);
      const double r_c = std::exp(mass(into, x) - log_total_[static_cast<size_t>(x)]);
      weighted += (r_e + r_c) * r_e;
      total += (r_e + r_c) * (r_e + r_c);
    }
    return total > 0 ? weighted / total : 0.5;
  }

  MergeOwner& owner_;
  SlotCache& cache_;
  std::vector<double> log_total_;  // ln Z^h before any merge
};

class KeepKvBias : public Merge {
 public:
  KeepKvBias()
      : Merge({"merge",
               "keepkv-bias",
               "mean by score, mass kept by a bias per query head",
               "kvsim",
               {"merge_threshold", "merge_order", "score_estimate"},
               "a layer without softcap"}) {}
  std::vector<std::string> votes() const override { return {"bias"}; }
  EstimateLines estimates() const override { return EstimateLines::every_head; }
  std::vector<std::string> bounds(int heads) const override {
    if (heads > 1) return {};
    return {"bias"};
  }

  void apply(MergeRequest& request) const override {
    const double threshold = request.settings->real(keys::merge_threshold);
    const auto targets = nearest_kept(request);
    for (size_t o = 0; o < targets.size(); ++o) {
      if (targets[o].empty()) continue;
      BiasMerge merging(request.owners[o]);
      for (size_t x = 0; x < targets[o].size(); ++x)
        if (targets[o][x].slot >= 0 && targets[o][x].cosine > threshold)
          merging.merge(request.owners[o].evicted[x], targets[o][x].slot);
    }
  }
};
const Register<Merge, KeepKvBias> keepkv_bias;

}  // namespace
}  // namespace kvsim::stages::merge::keepkv_bias
