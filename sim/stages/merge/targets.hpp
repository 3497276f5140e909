#pragma once
#include <vector>

#include "sim/stages/merge/merge.hpp"

namespace kvsim {

/// The kept slot whose key has the largest cosine with an evicted one's.
struct Target {
  int64_t slot = -1;  ///< -1: nothing is kept
  double cosine = 0;
};

/// One target per evicted slot of the owner; the more recent of equal ones. The cosine with a key
/// of length 0 is 0. Where sets were chosen before selection the target is the pivot, at cosine 1.
std::vector<Target> nearest_kept(const MergeOwner& owner);
/// Does it for all owners, in parallel.
std::vector<std::vector<Target>> nearest_kept(const MergeRequest& request);

/// x <- a x + b y.
void mix(std::span<float> x, double a, std::span<const float> y, double b);
double norm_of(std::span<const float> x);

}  // namespace kvsim
