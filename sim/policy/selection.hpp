#pragma once
#include <cstdint>
#include <vector>

#include "sim/core/kept_sets.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/scored_layer.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Candidates of every owner, best first (policies.md 10).
Ranking rank(const Table<double>& score, const Table<double>& raw, bool tie_by_raw,
             const std::vector<uint8_t>& candidate);

/// Everything that selection of one layer at one budget needs, the same for all owners.
struct SelectionInput {
  const Settings* settings = nullptr;
  const ScoredLayer* scored = nullptr;
  const Ranking* ranking = nullptr;        ///< by the final score
  const Ranking* by_unweighted = nullptr;  ///< only for stages that ask for it
  const std::vector<Range>* whitelist = nullptr;
  const std::vector<Range>* ranges = nullptr;  ///< segments that share the budget
  bool rescored = false;  ///< segments were scored and are protected on their own
  int64_t budget = 0;     ///< B
  bool budget_is_count = false;
  int64_t mass_cap = 0;  ///< see Stage1Request
  double kvpress_kept = 0;
  const KeptSets* unconstrained = nullptr;  ///< for constraints that compare with it
};

/// What is kept for sure, before budgets are allocated: protected entries in the order of their
/// grant, then those that stage 1 forces.
struct Guaranteed {
  std::vector<uint32_t> entries;
  int64_t guarded = 0;  ///< how many of them are protected
};

class Selection {
 public:
  explicit Selection(const SelectionInput& input) : in_(input) {}
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
  Range whole() const { return {0, in_.scored->entries()}; }

  const SelectionInput& in_;
};

}  // namespace kvsim
