#pragma once
#include <compare>

#include "sim/core/layer_trace.hpp"
#include "sim/policy/record.hpp"
#include "sim/replay/slots.hpp"
#include "sim/stages/merge/merge.hpp"

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

  int64_t entries_ = 0;
  std::vector<Wanted> wanted_;  ///< by handle
};

/// Attention and importance of the full cache on some entries, [Hq][steps]. What is empty was not
/// summed.
struct ShareSums {
  Table<double> attention, importance;
  Table<double> squares;  ///< of importance

  static ShareSums of(int64_t heads, int64_t steps) {
    const Table<double> none(heads, steps);
    return {none, none, none};
  }
};

/// Numbers of per-step choice for one record and budget over all T later steps.
struct PerStepResult {
  ShareSums kept;            ///< [Hq][T]
  Table<double> part_kept;   ///< [parts][T] importance kept of each part, over query heads
  std::vector<float> delta;  ///< [Hq][T][dv] z^ - z
  KeptSets last;             ///< the sets of the last step
};

struct PerStepInput {
  const float* importance = nullptr;  ///< [Hq][stride], stride >= n
  int64_t stride = 0;
  const std::vector<float>* z = nullptr;  ///< [Hq][T][dv] outputs of the full cache
  bool leave_out_guarded = false;         ///< sums without guarded entries (--scope evictable)
  std::vector<std::vector<Range>> parts;  ///< of the prompt, for part_kept
};

/// schedule=per-step and reads (policies.md 12): at each later step t every owner has the entries
/// that score best at t, in whole blocks as `settings` say; the more recent first on ties. Scores
/// are those of the record's indicator, or importance at t, summed over the query heads it serves.
/// `kept` gives, for each budget, the places of each owner and which entries are guarded and kept
/// whatever their score. Results are per budget.
std::vector<PerStepResult> replay_per_step(LayerWork& work, const Settings& settings,
                                           const std::vector<std::shared_ptr<const KeptSets>>& kept,
                                           const PerStepInput& input);

class FirstEstimates;

/// Over which entries retained shares are taken: the prompt's, those of them that were not
/// protected, or everything visible (metrics.md 0).
enum class Scope { prompt, evictable, all };

/// Parts of the prompt, each some disjoint ranges of its entries; parts may overlap.
using PromptParts = std::vector<std::vector<Range>>;

/// One policy at one budget, by their indices in the run.
struct ReplayCell {
  int record = 0;
  int budget = 0;
  auto operator<=>(const ReplayCell&) const = default;
};

/// A distinct outcome of replaying one layer: cells whose caches are equal share it.
struct ReplayOutcome {
  std::vector<ReplayCell> cells;
  std::shared_ptr<const KeptSets> kept;         ///< equal for all cells, but for what tied
  std::vector<std::vector<int64_t>> tied = {};  ///< KeptSets::tied of each cell; empty: of `kept`
  const Settings* settings = nullptr;
  bool changed = false;  ///< keys or values differ from the trace's: replayed as slots
  bool merging = false;  ///< entries were merged
  std::shared_ptr<const KeptSets> first_kept;  ///< at the first compression; null: as `kept`
  /// Per owner, the most slots that it held at a later step; empty: kept ones and all later tokens.
  std::vector<int64_t> most_slots = {};
  int64_t merge_count = 0;  ///< slots of two or more entries
  int64_t undefined_scales = 0;
  std::vector<double> scales;    ///< f of KeepKV Eq. 7
  std::vector<PairMerge> pairs;  ///< slots of exactly two entries, when asked for
  bool shares_defined = true;    ///< false with positions=cache: metrics.md 1 does not apply
  int kept_handle = -1;          ///< sets as asked of the PlanBuilder: what was kept,
  int share_handle = -1;         ///< numerator and
  int total_handle = -1;         ///< denominator of the shares; -1: the whole prompt, or none
  std::vector<int> part_share_handles;  ///< of both within each part of the prompt
  std::vector<int> part_total_handles;
};

/// One for every cell that is not null, where no two of them share what follows.
std::vector<ReplayOutcome> outcome_of_each(const LayerKept& kept,
                                           const std::vector<Record>& records);

/// Attention that an outcome keeps over some steps, and all there is, in the scope of the run.
struct RetainedSums {
  ShareSums kept;                       ///< squares of per-step outcomes and decoding only
  ShareSums total;                      ///< squares, and the last of these, while decoding only
  Table<double> part_kept, part_total;  ///< [parts][steps] importance of parts of the prompt, all
                                        ///< query heads
  std::vector<double> entries;          ///< [steps] pairs of head and entry in scope
};

struct OutcomeBlock {
  int outcome = 0;
  const RetainedSums* sums = nullptr;  ///< null: undefined
  const float* delta = nullptr;  ///< [Hq][outputs][dv] z^ - z, for the Projection of the backend;
                                 ///< null: all 0
  const float* rounding = nullptr;     ///< the same, what quantising adds; null: 0
  const MergeTally* merges = nullptr;  ///< null: no slot holds two entries
};

struct StepBlock {
  int64_t first_step = 0;
  int64_t steps = 0;
  const ReplayBlock* full = nullptr;  ///< the full cache at these steps; null when given before
  std::vector<OutcomeBlock> outcomes;
  /// Steps 0..T-1 of the block, ascending, whose outputs are here; without it all of them.
  std::optional<std::vector<int64_t>> output_steps = std::nullopt;
};

struct PrefillOptions {
  Scope scope = Scope::prompt;
  Norm norm = Norm::l1;                      ///< of v W in the importance
  uint64_t seed = 0;                         ///< of merges that draw
  bool slot_changes = false;                 ///< measure what merged slots change of the output
  bool pairs = false;                        ///< note slots of exactly two entries
  const Table<float>* importance = nullptr;  ///< [Hq][N] weights made before; null: made here
  PromptParts parts;                         ///< whose importance is also summed apart
  /// Later steps, ascending, whose outputs will be read; without it all. Blocks may hold more.
  std::optional<std::vector<int64_t>> output_steps = std::nullopt;
};

/// schedule=prefill: the prompt is compressed once, then every later step is replayed against what
/// was kept. Also per-step choice, and kept entries that were merged, rounded or re-rotated.
class PrefillReplay {
 public:
  /// `kept` is [record][budget], null where another loop replays the cell; everything given must
  /// outlive the replay.
  PrefillReplay(LayerWork& work, const LayerKept& kept, const std::vector<Record>& records,
                const PrefillOptions& options);

  const std::vector<ReplayOutcome>& outcomes() const { return outcomes_; }
  /// Calls `sink` with blocks of steps; the first calls cover all steps, in order, and carry the
  /// full cache.
  void run(const std::function<void(const StepBlock&)>& sink);

  const PlanBuilder::Plans& plans() const { return plans_; }
  /// Of the first pass over the later steps: q k for the whole prompt; where outputs are wanted,
  /// the full one and one over the largest kept set of every plan.
  double flops() const;
  /// [Hq][columns] weight of each entry in the importance; n columns, N when the scope is all.
  const Table<float>& importance() const { return *importance_; }

 private:
  using Sink = std::function<void(const StepBlock&)>;
  struct WholeRun;  // what is kept of the first pass for outcomes that follow it
  struct Attended;  // what outcomes share whose entries are changed

  void add_cell(ReplayCell cell, const std::shared_ptr<const KeptSets>& kept,
                const Settings& settings);
  void ask_for_sets(ReplayOutcome& outcome);
  RetainedSums sums_of(const ReplayOutcome& outcome, const ReplayBlock& block) const;
  void on_block(const ReplayBlock& block, WholeRun& whole, const Sink& sink) const;
  void run_per_step(const WholeRun& whole, const Sink& sink);
  void run_changed(const WholeRun& whole, const Sink& sink);
  void attend_watched(const LayerSlots& slots, const std::vector<SlotCache>& merged,
                      const WholeRun& whole, Attended& attended, MergeTally& tally) const;
  LayerSlots changed_slots(ReplayOutcome& outcome, FirstEstimates& estimates,
                           std::vector<SlotCache>& merged);
  bool needs_second_pass() const;
  bool wants_all_outputs() const { return !options_.output_steps || needs_second_pass(); }

  LayerWork& work_;
  PrefillOptions options_;
  PlanBuilder builder_;
  PlanBuilder::Plans plans_;
  std::vector<ReplayOutcome> outcomes_;
  Table<float> own_importance_;  ///< empty when the layer's own table serves
  const Table<float>* importance_ = nullptr;
};

}  // namespace kvsim
