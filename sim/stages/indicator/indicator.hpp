#pragma once
#include "sim/backend/backend.hpp"
#include "sim/core/prelude.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {

/// The axes of an indicator before aggregation and grouping.
enum class Axes {
  entry,      ///< [owner][i]: no queries; `aggregate` and `group` are skipped
  head,       ///< [h][i], of all observing queries at once; `aggregate` is skipped
  group,      ///< [kv head][i], of all observing queries at once; both are skipped
  head_row,   ///< [h][j][i]
  group_row,  ///< [kv head][j][i]; `group` is skipped
};
inline bool has_rows(Axes axes) { return axes == Axes::head_row || axes == Axes::group_row; }
inline bool has_query_heads(Axes axes) { return axes == Axes::head || axes == Axes::head_row; }

/// Something that not all indicators, or rows of them, can do.
struct Capability {
  virtual ~Capability() = default;
};

/// Turns rows of attention into rows of the indicator, for one layer and one segment. Rows may be
/// StoredRows, SummedRows and AggregatedRows beside that.
struct IndicatorRows {
  virtual ~IndicatorRows() = default;
  /// Called once per attention block, before any row() of it; not in parallel with row().
  virtual void start(const AttentionBlock&) {}
  /// Row of `head` of the block (0 for group rows): out[c] for the candidates c, all of the segment
  /// or a part of them; 0 where invisible.
  virtual void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
                   std::span<double> out) const = 0;
};

/// Rows that are all made in start().
class StoredRows : public IndicatorRows {
 public:
  explicit StoredRows(Range candidates) : candidates_(candidates) {}
  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const final {
    const auto first = static_cast<size_t>(candidates.begin - candidates_.begin);
    std::ranges::copy(stored_row(block, head, row).subspan(first, out.size()), out.begin());
  }
  /// All candidates of a row, where they are.
  std::span<const double> stored_row(const AttentionBlock& block, int head, int64_t row) const {
    const int64_t columns = candidates_.size();
    return {stored_.data() + (head * block.rows + row) * columns, static_cast<size_t>(columns)};
  }

 protected:
  Range candidates_;
  Buffer<double> stored_;  ///< [heads, or groups][rows][candidates] of the block at work
};

/// Rows whose weighted sum the backend makes without showing any of them.
struct SummedRows : Capability {
  /// The backend's sum of the rows at these positions with these weights, one for each; here of
  /// attention itself.
  virtual AttentionSum sum(std::span<const int64_t> /*positions*/,
                           std::vector<double> weights) const {
    return {AttentionSum::Of::attention, std::move(weights), {}};
  }
  /// Multiplies that sum, of one query head, with what all its rows have in common.
  virtual void scale(int /*query_head*/, Range /*candidates*/, std::span<double>) const {}
  /// Is a row attention itself?
  virtual bool is_attention() const { return false; }
};

/// Rows that are attention until they are aggregated over the queries (`order` starts with a).
struct AggregatedRows : IndicatorRows {
  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const final {
    const float* a = block.attention_row(head, row) + candidates.begin;
    for (size_t c = 0; c < out.size(); ++c) out[c] = static_cast<double>(a[c]);
  }
  /// After aggregation, of all heads of the last block, which begin with `first_head`: rows
  /// [heads][candidates].
  virtual void finish(int first_head, Range candidates,
                      std::span<std::vector<double>> rows) const = 0;
};

/// Input of an indicator without rows.
struct EntryRequest {
  LayerWork& work;
  const Settings& settings;
  const SideFiles& files;
  uint64_t seed = 0;
  double dropped = 0;           ///< 1 - rho, where the indicator follows the budget
  bool per_query_head = false;  ///< owners are query heads; values and keys come from kappa(h)
  int64_t owners() const { return per_query_head ? work.query_heads() : work.kv_heads(); }
  int kv_head(int64_t owner) const {
    return static_cast<int>(per_query_head ? owner / work.group_size() : owner);
  }
};

/// A slot of one owner while decoding.
struct SlotToScore {
  uint64_t seed = 0;
  int layer = 0;
  int owner = 0;
  int64_t position = 0;
  std::span<const float> key;
};

/// Slots of one owner that may leave at a compression while decoding.
struct SlotsToScore {
  int64_t now = 0;                     ///< position of the newest query
  std::span<const int64_t> positions;  ///< [slots] ascending
  std::span<const float> keys;         ///< [slots][d]
};

/// Scores the slots of one owner anew at every compression, from the queries that came so far.
struct SlotScorer {
  virtual ~SlotScorer() = default;
  /// A query of head x of the owner's, as the trace stores it.
  virtual void see(int x, std::span<const float> query, int64_t position) = 0;
  /// For head x: out[slots].
  virtual void score(const SlotsToScore& slots, int x, std::span<double> out) const = 0;
};

/// Scores what a query of a later step may read of the prompt (schedule=reads).
struct StepScorer {
  virtual ~StepScorer() = default;
  /// The scores that follow are of owners of this KV head. Not in parallel with score().
  virtual void start(int kv_head) = 0;
  /// Rows [heads][d] of one step: the queries of one owner's heads. out[n].
  virtual void score(const Table<float>& queries, std::span<double> out) const = 0;
};

/// Queries of a probe as a kind takes them.
enum class Probes { refused, taken, only };

/// Use that a kind makes of the observing queries; what it leaves out it does not use.
struct QueryUse {
  bool logits = false;         ///< beside attention
  bool outputs = false;        ///< beside attention
  bool moves_queries = false;  ///< the prompt's stand in for later ones, turned by RoPE to there
  bool sees_all = false;       ///< every query sees the whole prompt, entries after it included
  bool takes_future = false;   ///< the future's queries mean something, too, beside those of rows
  Probes probes = Probes::taken;  ///< of rows
  double cost = 0;  ///< beyond attention: in products of the observing queries with all values
};

/// Number that is measured per query head, observing query and entry (policies.md 5.2). A kind is
/// an EntryIndicator, an ObservedIndicator or a RowIndicator; beside that it may have some of the
/// capabilities below, which are asked for by as().
class Indicator : public NestingKind {
 public:
  Axes axes() const { return axes_; }
  const QueryUse& use() const { return use_; }
  bool sees_all() const { return use_.sees_all || use_.moves_queries; }
  bool takes_future() const { return use_.takes_future || has_rows(axes_); }
  /// Something that not all kinds can do; null where this one cannot.
  template <class Capability>
  const Capability* as() const {
    return dynamic_cast<const Capability*>(this);
  }

 protected:
  Indicator(KindInfo info, Axes axes, QueryUse use)
      : NestingKind("indicator", std::move(info)), axes_(axes), use_(use) {}

 private:
  Axes axes_;
  QueryUse use_;
};

/// Scores entries by what they are, without any query.
struct EntryIndicator : Indicator {
  explicit EntryIndicator(KindInfo info) : Indicator(std::move(info), Axes::entry, {}) {}
  /// Scores [owners][n], equal for every segment.
  virtual Table<double> entries(const EntryRequest&) const = 0;
};

/// Scores entries by all observing queries at once: Axes::head or Axes::group.
struct ObservedIndicator : Indicator {
  using Indicator::Indicator;
  /// Scores [heads or groups][candidates] of one segment.
  virtual Table<double> observed(const EntryRequest&, const Segment&) const = 0;
};

/// Has a row of numbers for every observing query: Axes::head_row or Axes::group_row.
struct RowIndicator : Indicator {
  explicit RowIndicator(KindInfo info, QueryUse use = {}, Axes axes = Axes::head_row)
      : Indicator(std::move(info), axes, use) {}
  /// Transformation of rows of attention.
  virtual std::unique_ptr<IndicatorRows> rows(LayerWork&, const Settings&,
                                              const Segment&) const = 0;
};

// Capabilities.

/// The score is where an entry stands.
struct ScoresByPosition : Capability {};
/// Reads the files that it names, so that what is wrong with them is said before any work.
struct ReadsFiles : Capability {
  virtual void check_files(const Settings&, const SideFiles&, int layer, int64_t owners,
                           int64_t entries) const = 0;
};
/// Scores may depend on the share that is dropped.
struct FollowsBudget : Capability {
  virtual bool follows_budget(const Settings&) const = 0;
};
/// Its rows are AggregatedRows: needs order=asg or ags.
struct AggregatesFirst : Capability {};
/// Asks more of a probe than its queries.
struct AsksProbe : Capability {
  /// Names what is missing, or "".
  virtual std::string probe_fault(const Settings&, const ProbeInfo&) const = 0;
};
/// schedule=decode: turns one query's attention over the slots present into a row.
struct ScoresSlotRows : Capability {
  virtual void slot_row(std::span<const double> attention, std::span<double> out) const = 0;
};
/// schedule=decode: scores a slot by what it is.
struct ScoresSlots : Capability {
  virtual double slot_score(const SlotToScore& slot) const = 0;
};
/// schedule=decode: scores slots by all queries so far, for an owner of so many heads (Axes::head).
struct FollowsQueries : Capability {
  virtual std::unique_ptr<SlotScorer> follow_queries(const LayerWork&, const Settings&,
                                                     int heads) const = 0;
};
inline bool scores_slots(const Indicator& kind) {
  return kind.as<ScoresSlotRows>() || kind.as<ScoresSlots>() || kind.as<FollowsQueries>();
}

/// schedule=per-step and reads: means something where every later step chooses its set.
struct ScoresSteps : Capability {
  virtual bool nowhere_else() const { return false; }
  /// Null: a step chooses by the importance that is measured.
  virtual std::unique_ptr<StepScorer> step_scorer(const LayerWork&, const Settings&) const {
    return nullptr;
  }
  /// Bytes beside a slot that choosing takes.
  virtual double bytes_per_slot(const Settings&, int64_t /*key_dim*/,
                                int64_t /*element_bytes*/) const {
    return 0;
  }
};

inline constexpr KindCondition scores_rows_if = {
    "indicator",
    [](const Kind& kind) { return has_rows(dynamic_cast<const Indicator&>(kind).axes()); }};
inline constexpr KindCondition observes_if = {
    "indicator",
    [](const Kind& kind) { return dynamic_cast<const Indicator&>(kind).axes() != Axes::entry; }};
/// The record's indicator, which has rows.
inline const RowIndicator& row_indicator(const Settings& settings) {
  return dynamic_cast<const RowIndicator&>(chosen<Indicator>(settings));
}
/// Does the record's indicator have rows, one for every observing query?
inline bool scores_rows(const Settings& settings) {
  return has_rows(chosen<Indicator>(settings).axes());
}
/// Does the record's indicator look at queries?
inline bool scores_queries(const Settings& settings) {
  return chosen<Indicator>(settings).axes() != Axes::entry;
}

}  // namespace kvsim
