#pragma once
#include "sim/stages/stages.hpp"

namespace kvsim {

namespace keys {
extern const Declare merge_threshold, merge_order;
}  // namespace keys

/// Cache of one owner (a KV head, or a query head with granularity=query): slots in ascending
/// position. A slot is one entry until others are merged into it. Keys and values lie in rows, as
/// many as there are slots, in any order: where slots leave, the last rows fill the gaps.
class SlotCache {
 public:
  SlotCache(int owner, int first_head, int heads, int64_t key_dim, int64_t value_dim)
      : owner_(owner), first_head_(first_head), heads_(heads), key_dim_(key_dim),
        value_dim_(value_dim) {}

  int owner() const { return owner_; }
  int first_head() const { return first_head_; }  ///< query heads that read it: first_head ..
  int heads() const { return heads_; }            ///< .. first_head + heads - 1
  int64_t size() const { return std::ssize(position_); }
  int64_t key_dim() const { return key_dim_; }
  int64_t value_dim() const { return value_dim_; }
  const std::vector<int64_t>& positions() const { return position_; }
  int64_t position(int64_t slot) const { return position_[slot]; }
  std::span<float> key(int64_t slot) { return {k_.data() + row(slot) * key_dim_, width(key_dim_)}; }
  std::span<const float> key(int64_t slot) const {
    return {k_.data() + row(slot) * key_dim_, width(key_dim_)};
  }
  std::span<float> value(int64_t slot) {
    return {v_.data() + row(slot) * value_dim_, width(value_dim_)};
  }
  std::span<const float> value(int64_t slot) const {
    return {v_.data() + row(slot) * value_dim_, width(value_dim_)};
  }
  int64_t row(int64_t slot) const { return row_[slot]; }
  const float* keys() const { return k_.data(); }    ///< [rows][d]
  const float* values() const { return v_.data(); }  ///< [rows][dv]

  /// Entries merged into a slot, ascending, its own included; empty while it is one entry alone.
  const std::vector<uint32_t>& members(int64_t slot) const { return members_[slot]; }
  /// Number of entries in the slot: its votes p.
  double entries(int64_t slot) const {
    return members(slot).empty() ? 1.0 : static_cast<double>(members(slot).size());
  }
  /// The entries of `from` now belong to `into`; `from` stays until it is erased.
  void absorb(int64_t from, int64_t into) {
    const auto listed = [this](int64_t slot) {
      const auto& entries = members(slot);
      return entries.empty() ? std::vector<uint32_t>{static_cast<uint32_t>(position(slot))}
                             : entries;
    };
    const std::vector<uint32_t> a = listed(from);
    const std::vector<uint32_t> b = listed(into);
    std::vector<uint32_t> all;
    all.reserve(a.size() + b.size());
    std::ranges::merge(a, b, std::back_inserter(all));
    members_[into] = std::move(all);
  }

  /// b^h of the slot for head x of the owner's; 0 until first set.
  double bias(int64_t slot, int x) const { return bias_.empty() ? 0 : bias_[slot * heads_ + x]; }
  void set_bias(int64_t slot, int x, double bias) {
    if (bias_.empty()) bias_.assign(size() * heads_, 0.0);
    bias_[slot * heads_ + x] = bias;
  }

  Estimates* estimates() const { return estimates_.get(); }  ///< null: nobody asked for any
  void estimate_with(std::unique_ptr<Estimates> estimates) { estimates_ = std::move(estimates); }

  void reserve(int64_t slots) {
    const auto count = static_cast<size_t>(slots);
    position_.reserve(count);
    row_.reserve(count);
    k_.reserve(count * width(key_dim_));
    v_.reserve(count * width(value_dim_));
    members_.reserve(count);
  }
  /// key and value are the caller's to write
  void append(int64_t position) {
    row_.push_back(size());
    position_.push_back(position);
    k_.resize(k_.size() + width(key_dim_));
    v_.resize(v_.size() + width(value_dim_));
    members_.emplace_back();
    if (!bias_.empty()) bias_.insert(bias_.end(), heads_, 0.0);
    if (estimates_) estimates_->append();
  }
  /// ascending
  void erase(std::span<const int64_t> slots) {
    if (slots.empty()) return;
    std::vector<int64_t> gaps;
    for (const int64_t slot : slots) gaps.push_back(row(slot));
    std::ranges::sort(gaps);
    erase_rows(position_, 1, slots);
    erase_rows(row_, 1, slots);
    fill_gaps(gaps);
    erase_rows(members_, 1, slots);
    if (!bias_.empty()) erase_rows(bias_, heads_, slots);
    if (estimates_) estimates_->erase(slots);
  }

 private:
  static size_t width(int64_t dim) { return static_cast<size_t>(dim); }
  /// Rows behind the number of slots move to the gaps before it.
  void fill_gaps(std::span<const int64_t> gaps) {
    auto gap = gaps.begin();
    const auto last = std::ranges::lower_bound(gaps, size());
    for (auto row = row_.begin(); gap != last; ++row) {
      if (*row < size()) continue;
      std::copy_n(k_.data() + *row * key_dim_, key_dim_, k_.data() + *gap * key_dim_);
      std::copy_n(v_.data() + *row * value_dim_, value_dim_, v_.data() + *gap * value_dim_);
      *row = *gap++;
    }
    k_.resize(position_.size() * width(key_dim_));
    v_.resize(position_.size() * width(value_dim_));
  }

  int owner_;
  int first_head_;
  int heads_;
  int64_t key_dim_;
  int64_t value_dim_;
  std::vector<int64_t> position_;
  std::vector<int64_t> row_;  ///< of each slot
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<std::vector<uint32_t>> members_;
  std::vector<double> bias_;  ///< [slots][heads], or empty
  std::unique_ptr<Estimates> estimates_;
};

/// Queries that a fit looks at: those that observe, of all heads of the owner.
struct ReferenceQueries {
  Table<float> queries;      ///< [queries][d] as the trace stores them
  std::vector<int> head;     ///< [queries] of the owner's
  double scale = 0;          ///< of logits
  std::vector<float> sinks;  ///< [heads] or empty
};

/// One owner at a compression. Slots that lose their place are still there; who called erases them
/// afterwards.
struct MergeOwner {
  SlotCache* cache = nullptr;
  std::vector<int64_t> evicted;   ///< slots, ascending
  std::vector<double> attention;  ///< [slots] of the newest query, mean over the owner's heads;
                                  ///< empty unless uses_attention()
  std::unique_ptr<ReferenceQueries> reference;  ///< only where fits_queries()
  /// Slots that become one, for kinds that replace selection; filled by who called.
  struct Set {
    int64_t pivot = 0;
    std::vector<int64_t> members;  ///< the pivot included
  };
  std::vector<Set> sets;
  /// Slots that a merge went into, in the order of the merges, and where they came from.
  struct Step {
    int64_t from = 0;
    int64_t into = 0;
    double entries_from = 1;  ///< before the merge
    double entries_into = 1;
    double log_score_from = kUnknown;  ///< ln s^ before the merge, where the kind estimates one
    double log_score_into = kUnknown;
    double scale = 1;  ///< f of Eq. 7
    static constexpr double kUnknown = kUndefined;
  };
  std::vector<Step> steps;
  int64_t undefined_scales = 0;  ///< merges at which Eq. 7 is undefined
  std::vector<double> scales;    ///< f of Eq. 7, one per merge
};

/// Memory of a kind about a layer between compressions.
struct MergeMemory {
  bool started = false;
  double threshold = 0;  ///< d2o's tau
};

/// One compression of one layer.
struct MergeRequest {
  const Settings* settings = nullptr;
  uint64_t seed = 0;
  int layer = 0;
  std::vector<MergeOwner> owners;
  MergeMemory* memory = nullptr;
};

enum class EstimateLines { none, mean_query, every_head };

/// Entries of one owner as sets that become one slot each; for kinds that replace selection.
struct ClusterRequest {
  const float* keys = nullptr;  ///< [n][d]
  int64_t key_dim = 0;
  std::span<const double> score;  ///< [n] higher = keep
  int64_t budget = 0;             ///< b
};
struct Clusters {
  std::vector<std::vector<uint32_t>> sets;  ///< entries of each, ascending; sets by `pivot`
  std::vector<uint32_t> pivot;              ///< entry of the set at whose position the slot sits
  std::vector<uint32_t> guarded;            ///< entries kept for sure, ascending
};

/// Treatment of entries that lose their place (policies.md 9).
struct Merge : Kind {
  explicit Merge(KindInfo info) : Kind("merge", std::move(info)) {}
  virtual bool merges() const { return true; }  ///< anything but `drop`
  /// Values of `votes` that fit, the usual one first.
  virtual std::vector<std::string> votes() const { return {"none"}; }
  virtual EstimateLines estimates() const { return EstimateLines::none; }
  virtual bool uses_attention() const { return false; }
  /// Logits must be linear in the key: no softcap.
  virtual bool needs_linear_logits() const { return estimates() != EstimateLines::none; }
  virtual bool replaces_selection() const { return false; }
  virtual bool fits_queries() const { return false; }  ///< to the queries that observe
  bool nests(const Settings&) const override { return !replaces_selection(); }
  /// Bounds of KeepKV's Theorem 5 that are about this kind, read by `heads` query heads.
  virtual std::vector<std::string> bounds(int /*heads*/) const { return {}; }
  virtual Clusters cluster(const ClusterRequest&) const { return {}; }

  /// Changes the slots that stay. Called once per compression, for all owners of a layer.
  virtual void apply(MergeRequest& request) const = 0;
};

inline constexpr KindCondition selects_entries_if = {
    "merge",
    [](const Kind& kind) { return !dynamic_cast<const Merge&>(kind).replaces_selection(); }};
/// Does the record select entries by their scores, whatever becomes of the others?
inline bool selects_entries(const Settings& settings) {
  return !chosen<Merge>(settings).replaces_selection();
}

/// Moves the entries of slot `from` into `into` and notes the step; keys and values are the
/// caller's business.
MergeOwner::Step& join(MergeOwner& owner, int64_t from, int64_t into);

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

/// merge(owner, slot, its target) for all owners, one slot after the other, where the cosine is
/// above the record's merge_threshold, or `at_threshold`.
void merge_pairs(MergeRequest& request,
                 const std::function<void(MergeOwner& owner, int64_t from, int64_t into)>& merge,
                 bool at_threshold = false);

/// x <- a x + b y.
void mix(std::span<float> x, double a, std::span<const float> y, double b);
double norm_of(std::span<const float> x);

/// How much attention remembers of what was merged: the log-weight lambda that is added to a
/// slot's logit (policies.md 9).
struct Votes : NestingKind {
  explicit Votes(KindInfo info) : NestingKind("votes", std::move(info)) {}
  virtual bool weighs() const { return true; }  ///< lambda can differ from 0
  /// lambda of a slot for head x of its owner's.
  virtual double log_weight(const SlotCache& cache, int64_t slot, int x) const = 0;
  /// Weight of a slot when its statistic is averaged with another's.
  virtual double weight(double /*entries*/) const { return 1; }
  /// Bytes that each slot needs beside its key and value, read by `heads` query heads.
  virtual double side_bytes(int heads) const = 0;
};

inline const Votes& votes_of(const Settings& settings) { return chosen<Votes>(settings); }

enum class MergeOrder { evict_first, merge_first };  // words of merge_order

inline bool merges_first(const Settings& settings) {
  return settings.word<MergeOrder>(keys::merge_order) == MergeOrder::merge_first;
}

/// One owner's prompt, to be merged before anything is evicted (policies.md 9).
struct MergeFirstRequest : ClusterRequest {
  std::span<const uint32_t> order;    ///< those that are ranked, best first
  std::span<const uint32_t> guarded;  ///< kept for sure, in the order of their grant
  double threshold = 0;               ///< cosine above which keys are alike
};

/// Ranked entries that are not kept for sure join, the worst first, the entry of the most similar
/// key until b are left; then sets stay by the sum of their scores. At most b sets, whose pivots
/// are kept.
Clusters merge_first(const MergeFirstRequest& request);

}  // namespace kvsim
