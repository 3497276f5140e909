#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/backend/layer_work.hpp"
#include "sim/core/kept_sets.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {

/// Estimates that the owners of a layer start from: the same for all budgets of a record that look
/// at as many queries.
class FirstEstimates {
 public:
  /// Forgets what was made of other settings, rows or owners.
  void prepare(const KeptSets& kept, const Settings& settings);
  /// A copy of the owner's, whose cache holds every prompt entry. Owners side by side.
  std::unique_ptr<Estimates> of(const LayerWork& work, const SlotCache& cache);

 private:
  const Settings* settings_ = nullptr;
  int64_t rows_ = 0, budget_ = 0;
  std::vector<std::unique_ptr<Estimates>> owners_;
};

}  // namespace kvsim
