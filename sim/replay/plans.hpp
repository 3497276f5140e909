#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/core/kept_sets.hpp"

namespace kvsim {

/// Kept entries of every owner, each ascending.
using OwnerSets = std::vector<std::vector<uint32_t>>;

/// Few replay plans for many kept sets. Equal sets are replayed once, whoever asked for them, and
/// sets that are nested for all owners share one chain, whatever record or budget they come from;
/// the backend pays for the largest set of a chain only. A set that holds every entry is not
/// replayed at all: it is the full cache.
class PlanBuilder {
 public:
  explicit PlanBuilder(int64_t entries) : entries_(entries) {}

  /// Asks for one set; returns its handle, the same for equal sets. `outputs`: its delta is wanted,
  /// not only its attention and importance sums.
  int add(std::shared_ptr<const OwnerSets> owners, bool per_query_head, bool outputs);

  struct Plans {
    static constexpr int kEverything = -1;
    std::vector<ReplayPlan> plans;
    std::vector<int> set;  ///< [handle] number of the set as in ReplayBlock, or kEverything
  };
  Plans build() const;

 private:
  struct Wanted {
    std::shared_ptr<const OwnerSets> owners;
    bool per_query_head = false;
    bool outputs = false;
    uint64_t hash = 0;
    int64_t size = 0;  ///< entries over all owners
  };
  bool is_everything(const Wanted& wanted) const;

  int64_t entries_ = 0;
  std::vector<Wanted> wanted_;  ///< by handle
};

/// The kept sets of an owner list without a copy: shares the life of `kept`.
std::shared_ptr<const OwnerSets> owners_of(const std::shared_ptr<const KeptSets>& kept);

}  // namespace kvsim
