#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/core/pair_merge.hpp"

namespace kvsim {

/// Steps after a merge at which KeepKV's bound is looked at.
const std::vector<int64_t>& bound_delays();

/// Change of one head's output at one query by one merged pair, and what Theorem 5 is made of
/// (metrics.md 3). Vectors are measured before W_O.
struct BoundSample {
  double perturbation = 0;  ///< Theta = ||o' - o||, only this pair replaced in the full cache
  double spread = 0;        ///< gamma = max over visible i and x in {e, c} of ||v_i - v_x||
  double mismatch = 0;      ///< epsilon = max over x of |1 - s^_x / s_x(t)|
  double scale = 1;         ///< f of Eq. 7
};

/// Samples of every pair at every delay whose query is stored and still meets the pair, [delay].
/// With several heads to a slot the query is their mean. Logits are linear in the key here.
std::vector<std::vector<BoundSample>> bound_samples(LayerWork& work,
                                                    std::span<const PairMerge> pairs);

/// One reading of the bound; defined for epsilon < 1.
struct MergeBound {
  std::string name;
  double (*value)(const BoundSample& sample);
};
/// `paper`: KeepKV Theorem 5 as printed; `scale`: with the factor f that multiplies the error;
/// `bias`: for merges that keep the mass by a bias.
const std::vector<MergeBound>& merge_bounds();

/// Shares and medians are NaN where there is nothing to take them of.
struct BoundSummary {
  int64_t pairs = 0;
  double applicable = std::numeric_limits<double>::quiet_NaN();  ///< share with epsilon < 1
  double violated = std::numeric_limits<double>::quiet_NaN();    ///< of those, Theta > bound
  double ratio = std::numeric_limits<double>::quiet_NaN();       ///< median Theta / bound of those
  double bound = std::numeric_limits<double>::quiet_NaN();       ///< median bound of those
  double perturbation = std::numeric_limits<double>::quiet_NaN();  ///< median Theta of all
};
BoundSummary summarize(const MergeBound& bound, std::span<const BoundSample> samples);

}  // namespace kvsim
