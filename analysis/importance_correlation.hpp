#pragma once
#include <vector>

#include "sim/backend/layer_work.hpp"

namespace kvsim {

/// First and second moments of the importance of a set of entries over all query heads.
struct Moments {
  double sum = 0;      ///< of I
  double squares = 0;  ///< of I^2
};

/// Moments of every set of some replay plans at one step: [set][T], sets numbered as in
/// ReplayBlock. Streams rows of attention from the backend. `importance` is [Hq][stride >= n].
std::vector<std::vector<Moments>> set_moments(LayerWork& work, const std::vector<ReplayPlan>& plans,
                                              const float* importance, int64_t stride);

/// Moments of the later entries n..t at each step, [T]; `importance` covers all N entries.
std::vector<Moments> later_moments(LayerWork& work, const float* importance, int64_t stride);

/// Correlation of x = I with y = I * [kept] over `count` pairs of head and entry (metrics.md 1). A
/// constant x or y gives 1 if x = y, else 0.
double importance_pearson(const Moments& all, const Moments& kept, double count);
double importance_cosine(const Moments& all, const Moments& kept);

}  // namespace kvsim
