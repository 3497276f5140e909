#pragma once
#include "sim/policy/record.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim {

/// How rows of query heads become rows of owners, whoever has the rows (policies.md 5.6). A KV
/// head's *units* are its rows after grouping: one, or one per query head.
class HeadGrouping {
 public:
  HeadGrouping(const LayerWork& work, const Settings& settings)
      : group_(chosen<Group>(settings)),
        of_groups_(!has_query_heads(chosen<Indicator>(settings).axes())),
        combines_(!of_groups_ && group_.span() != GroupSpan::head),
        whole_layer_(combines_ && group_.span() == GroupSpan::layer),
        of_query_heads_(per_query_head(settings)), heads_(work.group_size()),
        kv_heads_(work.kv_heads()) {}

  /// Do heads become one row? Else each is its own unit, or the indicator has grouped them.
  bool combines() const { return combines_; }
  /// Is there one row for all KV heads? Their blocks then come row by row.
  bool whole_layer() const { return whole_layer_; }
  /// Is the group of summed rows the sum of grouped rows?
  bool linear() const { return !combines_ || group_.linear(); }
  /// Rows that the indicator has of a KV head for each query.
  int rows_per_query() const { return of_groups_ ? 1 : heads_; }
  int units() const { return combines_ || of_groups_ ? 1 : heads_; }
  /// Has the row all its heads, once those of this KV head are in it?
  bool complete(int kv_head) const { return !whole_layer_ || kv_head + 1 == kv_heads_; }
  /// Is this the first KV head of a row?
  bool begins(int kv_head) const { return !whole_layer_ || kv_head == 0; }

  /// Adds the row of head `x` of a KV head's to the group's; heads come in order.
  void add(int kv_head, int x, std::span<const double> row, std::span<double> group) const {
    group_.add(whole_layer_ ? kv_head * heads_ + x : x, whole_layer_ ? kv_heads_ * heads_ : heads_,
               row, group);
  }
  /// Owners of unit `unit` of a KV head.
  Range owners(int kv_head, int unit) const {
    if (whole_layer_) return {0, of_query_heads_ ? kv_heads_ * heads_ : kv_heads_};
    const int64_t owner = of_query_heads_ ? kv_head * heads_ + unit : kv_head;
    return {owner, owner + 1};
  }

 private:
  const Group& group_;
  bool of_groups_;  // the indicator has one row per KV head
  bool combines_;
  bool whole_layer_;
  bool of_query_heads_;  // owners are query heads
  int heads_;            // of a KV head
  int kv_heads_;
};

/// Steps that turn an indicator's rows into one score per owner and entry: letters of the key
/// `order`.
struct ScoringStep {
  static constexpr char smooth = 's', aggregate = 'a', group = 'g';
};

/// Those of a record, in the order in which it takes them.
struct ScoringSteps : std::string {
  explicit ScoringSteps(const Settings& settings) : std::string(settings.text(keys::order)) {}
  /// Does `step` work on the rows of single queries?
  bool before_aggregate(char step) const { return find(step) < find(ScoringStep::aggregate); }
  std::string after_aggregate() const { return substr(find(ScoringStep::aggregate) + 1); }
};

/// Scoring that several records may share: the stages from `queries` to `normalize` (policies.md
/// 4), with everything resolved that does not depend on the layer.
///
/// `settings` holds what those stages declare that they read and nothing else, so that equal plans
/// mean equal scores: a stage that read more would throw.
struct ScorePlan {
  /// The part of a record's settings that scoring may read; of `allocate`'s when it watches rows.
  static Settings read_by_scoring(const Settings& record, bool watches);

  Settings settings;
  ScoringSteps steps;
  std::vector<Segment> segments;
  /// K = max(B - m, 0) of each variant, for smoothing that follows the drift of the K best; one
  /// variant for every other record.
  std::vector<int64_t> free_slots = {0};
  double dropped = 0;              ///< 1 - rho, where the indicator follows the budget
  bool wants_unweighted = false;   ///< scores before `weight`, too
  bool wants_mass = false;         ///< attention of owners, and on the window
  bool wants_deviation = false;    ///< over the queries
  bool wants_statistic = false;    ///< what `allocate` watches
  bool wants_token_class = false;  ///< what the tokens are
  bool for_survey = false;         ///< some record needs it of all layers before any is replayed
  std::set<int> layers = {};       ///< those that some record does not skip

  bool looks_ahead() const { return chosen<Queries>(settings).looks_ahead(); }
  std::string key() const;           ///< names all that scores depend on
  std::string grouping_key() const;  ///< the same of what they are up to `group`

 private:
  std::string key_of(const Settings& read) const;
};

struct PreparedBudget {
  int64_t entries = 0;     ///< B
  int64_t places = 0;      ///< of a head that keeps the whole prompt: n, or more while decoding
  int64_t window = 0;      ///< m
  bool keeps_all = false;  ///< nothing is evicted
  size_t plan = 0;         ///< its ScorePlan
  size_t variant = 0;      ///< of the plan's free_slots
  bool is_count = false;   ///< typed as a count, not as a ratio
  double dropped = 0;      ///< 1 - rho
  int64_t mass_cap = 0;    ///< see Stage1Request
  double kvpress_kept = 0;
  Table<int64_t> across;  ///< [layers][owners] budgets of kinds that work across layers
};

/// One record of the run, with all that is known of it before the first layer is read.
struct PreparedRecord {
  Settings settings;
  std::string title;        ///< canonical record, for messages
  bool rescored = false;    ///< segments are scored on their own
  std::vector<int> layers;  ///< layers that take part (not skipped)
  std::vector<Range> whitelist;
  std::vector<Range> ranges;  ///< segments that share the budget
  int64_t owners = 0;
  std::vector<PreparedBudget> budgets;
  std::vector<Budget> asked;  ///< its own, or those of the run
  int unconstrained = -1;     ///< index of the record it is compared with
  template <class Stage>
  const Stage& stage() const {
    return chosen<Stage>(settings);
  }
  bool skips(int layer) const { return !contains(layers, layer); }
};

/// [n] 1: entries in some of the ranges.
std::vector<uint8_t> listed_entries(const std::vector<Range>& ranges, int64_t n);

/// Does `allocate` rank by the scores before `weight`?
bool allocates_by_unweighted(const Settings& settings);

/// B: exact, or as kvpress computes it in IEEE doubles (policies.md 3).
int64_t budget_entries(const Settings& settings, const Budget& budget, int64_t n);

/// A chunk of a prompt, and what is compressed behind it (policies.md 12).
struct PromptChunk {
  Range range;          ///< its positions
  int64_t entries = 0;  ///< that may stay: B of all that is left, or the chunk's share of B
};
/// Chunks of a prompt of n entries with schedule=chunked.
std::vector<PromptChunk> prompt_chunks(const Settings& settings, const Budget& budget, int64_t n);
/// Is each chunk compressed by itself, and not what the cache holds?
bool compresses_chunks_alone(const Settings& settings);

/// A record without its constraint, where the constraint compares with what that would keep.
std::optional<Record> unconstrained(const Record& record);

/// Prepares records for a trace and collects the scoring they share.
class Preparation {
 public:
  Preparation(const TraceInfo& info, const std::vector<int>& layers,
              const std::vector<Budget>& budgets)
      : info_(info), layers_(layers), budgets_(budgets) {}

  PreparedRecord prepare(const Record& record);
  const std::vector<ScorePlan>& plans() const { return plans_; }
  /// Segments in which scoring runs; each votes with its own share of the window (policies.md 8).
  std::vector<Segment> segments(const PreparedRecord& record, int64_t window) const;

 private:
  PreparedBudget prepare(const PreparedRecord& record, const Budget& budget) const;
  ScorePlan plan_of(const PreparedRecord& record, int64_t window) const;
  size_t share_plan(ScorePlan plan);

  const TraceInfo& info_;
  const std::vector<int>& layers_;
  const std::vector<Budget>& budgets_;
  std::vector<ScorePlan> plans_;
  std::map<std::string, size_t> by_key_;
};

}  // namespace kvsim
