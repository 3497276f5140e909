#pragma once
#include "sim/backend/backend.hpp"
#include "sim/core/decimal.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {

namespace keys {
extern const Declare ema_alpha, power, weight_epsilon, chunk, chunk_scope, period, evict_batch,
    keep_prompt, buffer, block, block_score, whitelist, first_layer_recent, std_keep,
    protected_rank, fair_scores, quant_residual, estimate_window;
}  // namespace keys

/// Which queries observe a segment of the prompt, and which entries they score (policies.md 5.1).
struct Queries : Kind {
  explicit Queries(KindInfo info) : Kind("queries", std::move(info)) {}
  /// m at budget B: entries at the end of the prompt that observe and are protected.
  virtual int64_t window(const Settings&, int64_t /*budget*/, int64_t /*entries*/) const {
    return 0;
  }
  /// Fills `candidates`, `window` and `positions` of a segment whose `range` is set. `window` is
  /// the segment's own share of m.
  virtual void observe(const Settings& settings, int64_t window, const TraceInfo& info,
                       Segment& segment) const = 0;
  bool observes() const { return !changes_nothing(); }  ///< there are such queries
  virtual bool of_probe() const { return false; }       ///< they are a probe's
  virtual bool observes_all() const { return false; }   ///< every prompt query is one
  /// The newest entries observe, and are protected.
  virtual bool has_window() const { return false; }
  /// Its queries are of entries that are never evicted before they observe, or it has none.
  virtual bool observes_newest(const Settings&) const { return has_window() || !observes(); }
  /// A kind with a window says itself how that depends on the budget.
  bool nests(const Settings&) const override { return !has_window(); }
};

/// Lets tokens of the record's probe observe a segment (policies.md 5.1); where the trace has no
/// such probe none do.
void observe_with_probe(const Settings& settings, const TraceInfo& info, Segment& segment);

const std::string& probe_name(const Settings& settings);

/// Movement of the best entries over the observing rows, which an adaptive smoothing follows.
enum class Drift {
  none,
  indicator,  ///< of the rows that enter `aggregate`, over the candidates
  attention,  ///< of the attention rows, over all keys that the query sees
};

/// Folds rows into one: sees the rows of J in ascending order and keeps no more than a few numbers
/// per column, so that whole-prompt scores need no n x n matrix.
struct Aggregation {
  virtual ~Aggregation() = default;
  /// Columns `first`.. of row number j (0-based) of M. Of one column all rows come in order; parts
  /// of other columns may come side by side.
  virtual void add(int64_t j, int64_t first, std::span<const double> part) = 0;
  /// The query of row j sees its first `visible` columns. Once for every row, beside no other call.
  virtual void see(int64_t /*j*/, int64_t /*visible*/) {}
  virtual void finish(std::span<double> out) = 0;

  /// [M] weights, where the rows count only through their weighted sum; else empty. `add_sum` is
  /// then as good as `add` and `see` for every row: row j sees its first visible[j] columns.
  virtual std::span<const double> weights() const { return {}; }
  virtual void add_sum(std::span<const double> /*sum*/, std::span<const int64_t> /*visible*/) {}
};

/// Aggregation of slots that come and go while decoding (policies.md 12): columns are slots. It
/// starts from the prompt rows of J and goes on with one row per step.
class SlotStatistic : public Aggregation {
 public:
  /// One more row over all slots; the query sees the first `visible` of them.
  void add_row(std::span<const double> row, int64_t visible) {
    see(rows_, visible);
    add(rows_++, 0, row);
  }
  virtual double score(int64_t slot) const = 0;
  void finish(std::span<double> out) override {
    for (int64_t s = 0; s < std::ssize(out); ++s) out[s] = score(s);
  }
  virtual void append() = 0;
  virtual void erase(std::span<const int64_t> slots) = 0;  ///< ascending
  /// Slot `from` becomes part of `into`; weights are those of their entries.
  virtual void merge(int64_t from, int64_t into, double weight_from, double weight_into) = 0;

 private:
  int64_t rows_ = 0;
};

/// Over queries (policies.md 5.4).
struct Aggregate : NestingKind {
  explicit Aggregate(KindInfo info) : NestingKind("aggregate", std::move(info)) {}
  /// A kind overrides `follow`, or, where it cannot go on from step to step, `start`. Both, where
  /// going on is another computation: over the last rows alone, say.
  virtual std::unique_ptr<Aggregation> start(const Settings& settings, int64_t rows,
                                             int64_t columns) const {
    return follow(settings, rows, columns);
  }
  /// Over |J| = rows rows and then on; null where a kind cannot.
  virtual std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t /*rows*/,
                                                int64_t /*slots*/) const {
    return nullptr;
  }
  virtual bool follows_slots() const { return false; }
  /// No aggregation: every step is scored by its own row (schedule=per-step).
  virtual bool per_step() const { return false; }
};

/// Standard deviation over the rows that saw the slot (std_keep).
std::unique_ptr<SlotStatistic> deviation_of_seen_rows(int64_t slots);

/// Over neighbouring candidates (policies.md 5.5).
struct Smooth : Kind {
  explicit Smooth(KindInfo info) : Kind("smooth", std::move(info)) {}
  virtual bool only_before_aggregate() const { return false; }
  virtual Drift drift() const { return Drift::none; }
  /// Budgets nest unless it follows the best entries of the budget at hand.
  bool nests(const Settings&) const override { return drift() == Drift::none; }
  /// `drift` is Delta = D_front - D_rear; of no rows for kinds that do not follow one.
  virtual void apply(const Settings&, const PositionDrift& /*drift*/, std::span<const double> in,
                     std::span<double> out) const {
    std::ranges::copy(in, out.begin());
  }
  bool goes_on() const override { return drift() == Drift::none && !only_before_aggregate(); }
};

/// Divides scores by a sum of weights (policies.md 5.8); a zero divisor leaves them. Some kinds go
/// on with the scores themselves.
struct Normalize : NestingKind {
  explicit Normalize(KindInfo info) : NestingKind("normalize", std::move(info)) {}
  /// Is every entry divided by a sum of its own? Other sums leave a head's order as it is.
  virtual bool per_entry() const { return false; }
  /// Both [owners][n]; only `candidates` count and change.
  virtual void apply(const Table<double>& /*weights*/, Range /*candidates*/,
                     Table<double>& /*scores*/) const {}
  /// Changes the weighted scores [owners][n] themselves.
  virtual void finish(Range /*candidates*/, Table<double>& /*scores*/) const {}
};

/// s <- (s + weight_epsilon) * w (policies.md 5.8).
struct Weight : NestingKind {
  explicit Weight(KindInfo info) : NestingKind("weight", std::move(info)) {}
  /// w of a slot with this value, read by `heads`; each `outputs` is W^h of one of them, [dv][D].
  virtual double of_value(std::span<const float> /*value*/,
                          std::span<const Table<float>> /*outputs*/) const {
    return 1;
  }
  virtual bool needs_outputs() const { return false; }
  /// w: [owners][n]; owners are query heads when `per_query_head`.
  virtual Table<double> weights(LayerWork& work, bool per_query_head) const {
    return {per_query_head ? work.query_heads() : work.kv_heads(), work.entries(), 1};
  }
  /// Where the weights of candidates that are scored together depend on each other.
  virtual void settle(Range /*candidates*/, Table<double>& /*weights*/) const {}
};

/// A floor under the scores of one owner's candidates (policies.md 5.7).
struct Prior : NestingKind {
  explicit Prior(KindInfo info) : NestingKind("prior", std::move(info)) {}
  bool goes_on() const override { return changes_nothing(); }
  virtual void apply(const Settings&, std::span<double> /*scores*/) const {}
};

enum class GroupSpan { head, kv_group, layer };

/// Over the query heads that share an owner (policies.md 5.6).
struct Group : NestingKind {
  explicit Group(KindInfo info) : NestingKind("group", std::move(info)) {}
  virtual GroupSpan span() const { return GroupSpan::kv_group; }
  /// Is the group of summed rows the sum of grouped rows?
  virtual bool linear() const { return true; }
  /// Combines one more head's row into `out`, number `index` of `count`.
  virtual void add(int index, int count, std::span<const double> head,
                   std::span<double> out) const = 0;
};

/// How much of an entry other entries of its head say, too (policies.md 5.6). It lowers the score.
struct Redundancy : NestingKind {
  explicit Redundancy(KindInfo info) : NestingKind("redundancy", std::move(info)) {}
  /// Of m entries with these keys [m][d], in ascending position.
  virtual std::vector<double> of_keys(const Settings&, std::span<const float> /*keys*/,
                                      int64_t /*dim*/) const {
    return {};
  }
  /// Brings the redundancy of one head's candidates to the scale of their scores.
  virtual void level(std::span<double> /*redundancy*/) const {}
  /// The score of an entry and its redundancy as one number.
  virtual double mix(const Settings&, double score, double /*redundancy*/) const { return score; }
};

/// How the queries of a probe observe beside those of `queries` (policies.md 5.4): both are
/// aggregated by themselves, and an entry gets one number of both.
struct Join : NestingKind {
  explicit Join(KindInfo info) : NestingKind("join", std::move(info)) {}
  bool joins() const { return !changes_nothing(); }
  virtual double join(const Settings&, double of_prompt, double /*of_probe*/) const {
    return of_prompt;
  }
};

/// An aggregation whose first `prompt_rows` rows are the one set, the others the other one.
std::unique_ptr<Aggregation> start_joined(const Settings& settings,
                                          std::unique_ptr<Aggregation> prompt,
                                          std::unique_ptr<Aggregation> probe, int64_t prompt_rows);

/// Memory of what earlier compressions said of a slot, beside what this one says (policies.md 5.6).
struct Memory : NestingKind {
  explicit Memory(KindInfo info) : NestingKind("memory", std::move(info)) {}
  /// Brings the scores of one head's candidates to the scale on which they are remembered.
  virtual void level(std::span<double> /*scores*/) const {}
  /// Joins what was remembered of a slot and its score now, both on that scale.
  virtual double join(const Settings&, double /*remembered*/, double now) const { return now; }
};

/// When compression runs (policies.md 12).
struct Schedule : Kind {
  struct Traits {
    bool once = false;       ///< one compression, then never again
    bool per_step = false;   ///< a set chosen anew at each later step
    bool evicts = true;      ///< what is not kept is not held either
    bool decodes = false;    ///< slots leave at every later step
    bool repeats = false;    ///< the full cache is compressed anew
    bool in_chunks = false;  ///< while the prompt comes, too
    bool looks_ahead = false;
  };
  Schedule(KindInfo info, Traits traits) : Kind("schedule", std::move(info)), traits_(traits) {}
  bool nests(const Settings&) const override { return !in_chunks(); }  // nothing is chosen by it
  bool looks_ahead() const override { return traits_.looks_ahead; }
  bool at_each_step() const override { return per_step(); }
  bool once() const { return traits_.once; }
  bool per_step() const { return traits_.per_step; }
  bool evicts() const { return traits_.evicts; }
  bool decodes() const { return traits_.decodes; }
  bool repeats() const { return traits_.repeats; }
  bool in_chunks() const { return traits_.in_chunks; }

 private:
  Traits traits_;
};

enum class BlockScore { mean, max, root_mean_square };  // words of block_score

/// Entries of the block that holds entry i: [kb, (k+1)b) of the n (policies.md 5.9).
Range block_of(const Settings& settings, int64_t entry, int64_t entries);

/// One score of those of a block's entries, by `block_score`.
double block_score_of(const Settings& settings, std::span<const double> entries);

/// Gives every candidate the score of its block, [owners][n].
void score_blocks(const Settings& settings, Range candidates, Table<double>& scores);

/// Makes one score of those that the owners of a layer have for an entry, so that all of them keep
/// the same set (policies.md 5.9).
struct Union : NestingKind {
  explicit Union(KindInfo info) : NestingKind("union", std::move(info)) {}
  bool unites() const { return !changes_nothing(); }
  /// [owners][n]; only `candidates` count and change.
  virtual void apply(Range /*candidates*/, Table<double>& /*scores*/) const {}
};

struct ScoredLayer;

/// Does the record make one score of those that all layers have for an entry?
bool unites_layers(const Settings& settings);

/// Makes it: layers take the place of heads. The scores of each layer are united and of whole
/// blocks (policies.md 5.9); the same segments in all.
void unite_layers(const Settings& settings, const std::vector<ScoredLayer*>& layers);

enum class ProtectedRank { guaranteed, layer_max };  // words of protected_rank

/// Where protection of one owner applies: the whole prompt, or a segment of a fair record.
struct ProtectRequest {
  const Settings* settings = nullptr;
  const std::vector<Range>* whitelist = nullptr;  ///< resolved ranges
  int layer = 0;                                  ///< the model's index l
  Range range;                                    ///< entries of the segment
  bool first = true;                              ///< the segment that holds the sinks
  bool last = true;                               ///< the segment that holds `recent`
  int64_t window = 0;                             ///< the segment's own window
  int64_t budget = 0;                  ///< B, or the segment's share: what fractions multiply
  std::span<const double> deviation;   ///< [n] of the owner, for std_keep; may be empty
  std::span<const uint8_t> candidate;  ///< [n]
};

/// How many of the newest entries a layer protects beside the window (policies.md 6): `recent`, in
/// the model's first layer `first_layer_recent` where that is more. Fractions multiply `budget`.
int64_t newest_protected(const Settings& settings, int layer, int64_t budget);

/// Protected entries in the order in which they are granted when they do not all fit: whitelist;
/// sinks, lowest first; window and recent, newest first; std_keep, largest first (policies.md 6).
std::vector<uint32_t> protected_entries(const ProtectRequest& request);

/// FastGen's classes that a token's text decides (policies.md 6).
enum class TokenClass : uint8_t { other, special, punctuation };

/// Special: `<|...|>`, or one name in <> or [] (`<s>`, `</s>`, `[INST]`); punctuation: nothing but
/// punctuation of ASCII, Unicode's General Punctuation (U+2010 to U+205E) or CJK and full-width
/// forms of it. Blanks around the text do not count; a blank text is neither.
TokenClass token_class(std::string_view text);
/// Of the first `count` texts, as ScoredLayer holds them.
std::vector<uint8_t> token_classes(std::span<const std::string> texts, int64_t count);

/// Entries of a range in FastGen's order: special, punctuation, the frequent ones, the local ones.
struct ClassOrder {
  std::vector<uint32_t> entries;  ///< each once, at its first class
  std::array<int64_t, 4> ends{};  ///< entries[0, ends[c]) are classes 0..c
};
/// Frequent: the best floor(class_frequent * size) candidates by score (equal: the more recent),
/// best first; local: the newest floor(class_local * size) entries, newest first; the others in
/// ascending position.
ClassOrder class_order(const Settings& settings, const ScoredLayer& scored, int64_t owner,
                       Range range);

/// View of one owner by a first selection stage.
struct Stage1Request {
  const Settings* settings = nullptr;
  const ScoredLayer* scored = nullptr;
  int64_t owner = 0;
  Range range;                  ///< entries of the segment
  int64_t budget = 0;           ///< before_allocate: B; after: b, or the segment's share
  int64_t protected_count = 0;  ///< |P| in the range
  const std::vector<uint8_t>* is_protected = nullptr;    ///< [n]
  const std::vector<uint32_t>* by_unweighted = nullptr;  ///< best first, after_allocate only
  int64_t mass_cap = 0;                                  ///< floor((n-m) * rho - m)
  double kvpress_kept = 0;                               ///< (1.0 - r) * n in double
  bool budget_is_count = false;
};

/// Entries that are forced into the kept set before the ranking by score (policies.md 6).
struct Stage1 : Kind {
  explicit Stage1(KindInfo info) : Kind("stage1", std::move(info)) {}
  bool goes_on() const override { return changes_nothing(); }
  bool nests(const Settings&) const override { return changes_nothing(); }
  virtual bool uses_unweighted() const { return false; }
  virtual bool uses_mass() const { return false; }
  virtual bool uses_token_classes() const { return false; }  ///< of ScoredLayer
  /// Forced entries, best first; they count among what `allocate` marks.
  virtual std::vector<uint32_t> before_allocate(const Stage1Request&) const { return {}; }
  virtual std::vector<uint32_t> after_allocate(const Stage1Request&) const { return {}; }
};

enum class FairScores { local, unconstrained };  // words of fair_scores

/// Entries that `constrain` divides among the segments of one owner.
struct ShareRequest {
  int64_t budget = 0;                  ///< b of the owner
  int64_t sinks = 0;                   ///< kept in the first segment before dividing
                                       ///< (indicator=position), else 0
  std::vector<int64_t> sizes;          ///< entries of each segment
  std::vector<int64_t> unconstrained;  ///< kept per segment by the unconstrained record;
                                       ///< only for kinds that compare with it; empty while
                                       ///< budgets are not known yet: shares are the fair ones
  bool position = false;               ///< indicator=position: its own division
};

/// Cuts the prompt into segments and divides budgets over them (policies.md 8).
struct Constrain : Kind {
  explicit Constrain(KindInfo info) : Kind("constrain", std::move(info)) {}
  bool cuts() const { return !changes_nothing(); }
  bool goes_on() const override { return !cuts(); }
  bool nests(const Settings&) const override { return !cuts(); }
  virtual bool compares_with_unconstrained(const Settings&) const { return false; }
  /// Scores come from the unconstrained record whatever `fair_scores` says.
  virtual bool keeps_scores(const Settings& settings) const {
    return settings.word<FairScores>(keys::fair_scores) == FairScores::unconstrained;
  }
  /// Ranges of the segments, covering [0, n).
  virtual std::vector<Range> segments(const Settings&, const std::vector<Span>& /*spans*/,
                                      int64_t entries) const {
    return {{0, entries}};
  }
  virtual std::vector<int64_t> shares(const Settings&, const ShareRequest& request) const {
    return {request.budget};
  }
};

/// How much of one head's slots is quantised; for the memory model.
struct QuantizedCount {
  int64_t numbers = 0;  ///< quantised numbers, keys and values
  int64_t bits = 0;     ///< that they take, scales and all
};

/// The slots of one head, in ascending position.
struct SlotNumbers {
  Table<float>& k;                      ///< [b][d]
  Table<float>& v;                      ///< [b][dv]
  std::span<const uint32_t> positions;  ///< [b]
  const Rotation* rope = nullptr;       ///< of the layer; without pairs where it has none
};

/// Rounds the kept entries of one head to few bits (policies.md 11). Runs once at each compression,
/// after merging.
struct Quantize : NestingKind {
  explicit Quantize(KindInfo info) : NestingKind("quantize", std::move(info)) {}
  bool changes_entries() const { return !changes_nothing(); }
  bool goes_on() const override { return !changes_entries(); }
  /// Replaces keys and values by what their codes stand for, in float32 arithmetic.
  virtual void apply(const Settings&, const SlotNumbers&) const {}
  virtual QuantizedCount count(const Settings&, int64_t /*slots*/, int64_t /*head_dim*/,
                               int64_t /*value_dim*/) const {
    return {};
  }
  /// Needs the rotation of keys.
  virtual bool turns_keys(const Settings&) const { return false; }
  /// Fault of the settings for this kind, or nothing.
  virtual std::string fault(const Settings&) const { return {}; }
};

/// The kind that `quantize` of the record names.
inline const Quantize& quantizer(const Settings& settings) { return chosen<Quantize>(settings); }

/// Estimates ln s^ of what the next queries' scores s = exp(logit) of each slot will be. An owner
/// has one line of estimates per query it follows: the mean query of its heads, or every head.
/// Slots are numbered as in the SlotCache that owns the estimates.
struct Estimates {
  static constexpr double kNothing = -std::numeric_limits<double>::infinity();  ///< ln 0

  virtual ~Estimates() = default;
  virtual std::unique_ptr<Estimates> copy() const = 0;
  /// One more query: its logits of all slots, -inf where a slot was not visible yet.
  virtual void see(int line, std::span<const double> logits) = 0;
  virtual double log_score(int64_t slot, int line) const = 0;
  virtual void append() = 0;
  virtual void erase(std::span<const int64_t> slots) = 0;  ///< ascending
  /// The slot became another one; its estimate goes on from this value.
  virtual void restart(int64_t slot, int line, double log_score) = 0;
};

/// How scores are predicted (policies.md 9, KeepKV Eq. 8).
struct ScoreEstimate : NestingKind {
  explicit ScoreEstimate(KindInfo info) : NestingKind("score_estimate", std::move(info)) {}
  /// How many of the last prompt queries it starts from, at most; shares multiply B.
  virtual int64_t rows(const Settings& settings, int64_t budget) const = 0;
  /// Budgets with as many rows start alike.
  virtual std::unique_ptr<Estimates> start(const Settings& settings, int64_t budget, int lines,
                                           int64_t slots) const = 0;
};

}  // namespace kvsim
