#include <cmath>

#include "sim/core/log_sum.hpp"
#include "sim/stages/merge/targets.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim::stages::merge::keepkv {
namespace {

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

class KeepKv : public Merge {
 public:
  KeepKv()
      : Merge({"merge",
               "keepkv",
               "mean by score and votes, key scaled to keep the mass",
               "KeepKV Eq. 7",
               {"merge_threshold", "merge_order", "score_estimate"},
               "a layer without softcap"}) {}
  std::vector<std::string> votes() const override { return {"count"}; }
  EstimateLines estimates() const override { return EstimateLines::mean_query; }
  std::vector<std::string> bounds(int) const override { return {"paper", "scale"}; }

  void apply(MergeRequest& request) const override {
    const double threshold = request.settings->real(keys::merge_threshold);
    const auto targets = nearest_kept(request);
    for (size_t o = 0; o < targets.size(); ++o)
      for (size_t x = 0; x < targets[o].size(); ++x)
        if (targets[o][x].slot >= 0 && targets[o][x].cosine > threshold)
          merge_pair(request.owners[o], request.owners[o].evicted[x], targets[o][x].slot);
  }
};
const Register<Merge, KeepKv> keepkv;
const DeclareNote keepkv_note_1{
    {.of = "merge=keepkv",
     .source = "KeepKV Eq. 7",
     .point = "query heads that share a key have scores of their own",
     .reading = "the logit of the group's mean query is the score of the shared "
                "slot; `granularity=query` has no such choice to make"}};
const DeclareNote keepkv_note_2{{.of = "merge=keepkv",
                                 .source = "KeepKV Eq. 7",
                                 .point = "the denominator can be 0",
                                 .reading = "the scale is 1 there, counted in `zip_undefined`"}};
const DeclareNote keepkv_note_3{
    {.of = "merge=keepkv",
     .source = "KeepKV Algorithm 1",
     .point = "several entries may choose the same slot; the order is not given",
     .reading = "targets are chosen for all from the keys as they were, then "
                "merges run in ascending position"}};

}  // namespace
}  // namespace kvsim::stages::merge::keepkv
