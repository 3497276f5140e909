#pragma once
#include <cstdint>
#include <vector>

#include "sim/core/kept_sets.hpp"
#include "sim/policy/prepared_record.hpp"

namespace kvsim {

/// Candidates of every owner, best first (policies.md 10).
Ranking rank(const Table<double>& score, const Table<double>& raw, bool tie_by_raw,
             const std::vector<uint8_t>& candidate);

/// Entries kept for sure, before budgets are allocated: protected ones in the order of their
/// grant, then those that stage 1 forces.
struct Guaranteed {
  std::vector<uint32_t> entries;
  int64_t guarded = 0;  ///< how many of them are protected
};

class Selection {
 public:
  /// Of one layer at one budget, the same for all owners. The rankings of `scored` are made.
  Selection(const PreparedRecord& record, const PreparedBudget& budget, const ScoredLayer& scored);
  /// With another ranking by the final score; and, for constraints that compare with it, what the
  /// record without them keeps.
  Selection(const PreparedRecord& record, const PreparedBudget& budget, const ScoredLayer& scored,
            const Ranking& ranking, const KeptSets* unconstrained);
  Guaranteed guaranteed(int64_t owner) const;
  /// Kept entries, guarded ones and ties of one owner with b entries; written to `kept`.
  void select(int64_t owner, int64_t b, KeptSets& kept) const;

 private:
  struct Part;
  std::vector<uint32_t> protection(int64_t owner, size_t k, int64_t budget,
                                   bool by_deviation = true) const;
  std::vector<uint32_t> forced(int64_t owner, Range range, int64_t budget, bool before,
                               const std::vector<uint32_t>& guarded) const;
  std::vector<int64_t> shares(int64_t owner, int64_t b) const;
  void order_by_position(Part& part) const;
  void take(int64_t owner, const Part& part, KeptSets& kept) const;
  Range whole() const { return {0, scored_.entries()}; }

  const PreparedRecord& record_;
  const PreparedBudget& budget_;
  const ScoredLayer& scored_;
  const Ranking& ranking_;
  const KeptSets* unconstrained_;
};

}  // namespace kvsim
