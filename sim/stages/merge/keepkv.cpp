#include "sim/core/numbers.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim::stages::merge::keepkv {

constexpr double kLeastLevel = 1e-6;  // |mean logit| below which Eq. 7 divides by nothing

/// KeepKV Eq. 7 in logs. With L = ln s^, a = ln p + L: the key is the mean by score, stretched by
/// f = (Lambda - ln P) / mean L, so that P votes of the slot weigh at the estimate what both did.
void merge_pair(MergeOwner& owner, int64_t from, int64_t into) {
  SlotCache& cache = *owner.cache;
  Estimates& estimates = *cache.estimates();
  const double level_e = estimates.log_score(from, 0);
  const double level_c = estimates.log_score(into, 0);
  const double mass_e = std::log(cache.entries(from)) + level_e;
  const double mass_c = std::log(cache.entries(into)) + level_c;
  const double share = 1 / (1 + std::exp(mass_c - mass_e));
  const double mean_level = share * level_e + (1 - share) * level_c;
  const double level = log_add(mass_e, mass_c) -
                       std::log(cache.entries(from) + cache.entries(into));
  double scale = 1;
  if (std::fabs(mean_level) < kLeastLevel)
    ++owner.undefined_scales;
  else
    scale = level / mean_level;
  owner.scales.push_back(scale);
  mix(cache.key(into), scale * (1 - share), cache.key(from), scale * share);
  mix(cache.value(into), 1 - share, cache.value(from), share);
  estimates.restart(into, 0, level);
  MergeOwner::Step& step = join(owner, from, into);
  step.log_score_from = level_e;
  step.log_score_into = level_c;
  step.scale = scale;
}

struct KeepKv : Merge {
  KeepKv()
      : Merge({"keepkv", "mean by score and votes, key scaled to keep the mass", "KeepKV Eq. 7",
               "merge_threshold merge_order score_estimate", "a layer without softcap"}) {}
  std::vector<std::string> votes() const override { return {"count"}; }
  EstimateLines estimates() const override { return EstimateLines::mean_query; }
  std::vector<std::string> bounds(int) const override { return {"paper", "scale"}; }

  void apply(MergeRequest& request) const override { merge_pairs(request, merge_pair); }
};

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
      const double r_e = std::exp(mass(from, x) - log_total_[x]);
      const double r_c = std::exp(mass(into, x) - log_total_[x]);
      weighted += (r_e + r_c) * r_e;
      total += (r_e + r_c) * (r_e + r_c);
    }
    return total > 0 ? weighted / total : 0.5;
  }

  MergeOwner& owner_;
  SlotCache& cache_;
  std::vector<double> log_total_;  // ln Z^h before any merge
};

struct KeepKvBias : Merge {
  KeepKvBias()
      : Merge({"keepkv-bias", "mean by score, mass kept by a bias per query head", "kvsim",
               "merge_threshold merge_order score_estimate", "a layer without softcap"}) {}
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

const double kLogGuard = -14 * std::log(2.0);  // what the code adds to scores, 2^-14, in logs

/// As published: the mean by votes times (score + 2^-14), without the scale of Eq. 7.
void merge_as_coded(MergeOwner& owner, int64_t from, int64_t into) {
  SlotCache& cache = *owner.cache;
  Estimates& estimates = *cache.estimates();
  const double level_e = estimates.log_score(from, 0);
  const double level_c = estimates.log_score(into, 0);
  const double votes_e = std::log(cache.entries(from));
  const double votes_c = std::log(cache.entries(into));
  const double weight_e = votes_e + log_add(level_e, kLogGuard);
  const double weight_c = votes_c + log_add(level_c, kLogGuard);
  const double share = 1 / (1 + std::exp(weight_c - weight_e));
  mix(cache.key(into), 1 - share, cache.key(from), share);
  mix(cache.value(into), 1 - share, cache.value(from), share);
  estimates.restart(into, 0,
                    log_add(votes_e + level_e, votes_c + level_c) -
                        std::log(cache.entries(from) + cache.entries(into)));
  join(owner, from, into);
}

struct KeepKvCode : Merge {
  KeepKvCode()
      : Merge({"keepkv-code", "mean by score and votes, key not scaled", "KeepKV repository",
               "merge_threshold merge_order score_estimate", "a layer without softcap"}) {}
  std::vector<std::string> votes() const override { return {"count"}; }
  EstimateLines estimates() const override { return EstimateLines::mean_query; }

  void apply(MergeRequest& request) const override { merge_pairs(request, merge_as_coded, true); }
};
const Register<Merge, KeepKv, KeepKvBias, KeepKvCode> registered;

}  // namespace kvsim::stages::merge::keepkv
