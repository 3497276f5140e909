#include <cmath>

#include "sim/core/log_sum.hpp"
#include "sim/stages/merge/targets.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim::stages::merge::keepkv_code {
namespace {

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

class KeepKvCode : public Merge {
 public:
  KeepKvCode()
      : Merge({"merge",
               "keepkv-code",
               "mean by score and votes, key not scaled",
               "KeepKV repository",
               {"merge_threshold", "merge_order", "score_estimate"},
               "a layer without softcap"}) {}
  std::vector<std::string> votes() const override { return {"count"}; }
  EstimateLines estimates() const override { return EstimateLines::mean_query; }

  void apply(MergeRequest& request) const override {
    const double threshold = request.settings->real(keys::merge_threshold);
    const auto targets = nearest_kept(request);
    for (size_t o = 0; o < targets.size(); ++o)
      for (size_t x = 0; x < targets[o].size(); ++x)
        if (targets[o][x].slot >= 0 && targets[o][x].cosine >= threshold)
          merge_as_coded(request.owners[o], request.owners[o].evicted[x], targets[o][x].slot);
  }
};
const Register<Merge, KeepKvCode> keepkv_code;
const DeclareNote keepkv_code_note{
    {.of = "merge=keepkv-code",
     .source = "KeepKV repository",
     .point = "no moving average, no scale of keys; half precision changes the "
              "votes of one slot in seventy; estimates keep all rows after a "
              "merge",
     .reading = "as coded, in float32; estimates start again after a merge"}};

}  // namespace
}  // namespace kvsim::stages::merge::keepkv_code
