#pragma once
#include "sim/core/layer_trace.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/policy/scoring.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim {

/// The statistics from which decoding starts: full-cache rows of J over all prompt entries, grouped
/// before they are aggregated (policies.md 12).
class PromptStatistics : public RowConsumer {
 public:
  PromptStatistics(LayerWork& work, const Settings& settings, const Segment& segment)
      : RowConsumer(segment), work_(work), heads_(work, settings),
        rows_(row_indicator(settings).rows(work, settings, segment)) {
    const auto& aggregate = chosen<Aggregate>(settings);
    const int owners = per_query_head(settings) ? work.query_heads() : work.kv_heads();
    const auto rows = std::ssize(segment.positions);
    for (int owner = 0; owner < owners; ++owner) {
      scores_.push_back(aggregate.follow(settings, rows, work.entries()));
      if (settings.real(keys::std_keep) > 0)
        deviations_.push_back(deviation_of_seen_rows(work.entries()));
    }
  }

  /// One per owner, over slots 0..n-1; taken once, after the pass.
  std::vector<std::unique_ptr<SlotStatistic>> take_scores() { return std::move(scores_); }
  std::vector<std::unique_ptr<SlotStatistic>> take_deviations() { return std::move(deviations_); }

  AttentionPass wanted() const override {
    AttentionPass pass{.positions = segment().positions};
    pass.rows_outer = heads_.whole_layer();
    return pass;
  }
  RowUse use() const override {
    RowUse use{.terms = rows_.summed(),
               .grouping = &heads_,
               .groups_layer = true,
               .each_row = !deviations_.empty()};
    if (const auto weights = scores_.front()->weights(); !weights.empty())
      use.weights.emplace(weights.begin(), weights.end());
    return use;
  }
  void take_sums(const TakenSums& taken) override {
    const Table<double>& sums = *taken.front();
    std::vector<int64_t> visible;
    for (const int64_t position : segment().positions)
      visible.push_back(std::min(work_.entries(), position + 1));
    const int heads = work_.group_size();
    std::vector<double> head_row, grouped(work_.entries());
    for (int kv_head = 0; kv_head < work_.kv_heads(); ++kv_head) {
      for (int x = 0; x < heads; ++x) {
        const int head = kv_head * heads + x;
        head_row.assign(sums.row(head).begin(), sums.row(head).begin() + work_.entries());
        rows_.summed()->scale(head, {0, work_.entries()}, head_row);
        if (heads_.combines())
          heads_.add(kv_head, x, head_row, grouped);
        else
          scores_[head]->add_sum(head_row, visible);
      }
      if (!heads_.combines() || !heads_.complete(kv_head)) continue;
      const Range owners = heads_.owners(kv_head, 0);
      for (int64_t owner = owners.begin; owner < owners.end; ++owner)
        scores_[owner]->add_sum(grouped, visible);
    }
  }
  void start(const AttentionBlock& block, int64_t first_row) override {
    rows_.start(block, first_row);
  }
  void run(const AttentionBlock& block, int64_t, int) override {
    const int64_t n = work_.entries();
    if (heads_.begins(block.kv_head)) grouped_ = Table<double>(block.rows, n);
    std::vector<double> head_row(n);
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t visible = std::min(n, block.positions[r] + 1);
      for (int x = 0; x < block.heads; ++x) {
        rows_->row(block, x, r, {0, n}, head_row);
        if (heads_.combines())
          heads_.add(block.kv_head, x, head_row, grouped_.row(r));
        else
          add(heads_.owners(block.kv_head, x), head_row, visible);
      }
      if (heads_.combines() && heads_.complete(block.kv_head))
        add(heads_.owners(block.kv_head, 0), grouped_.row(r), visible);
    }
  }

 private:
  void add(Range owners, std::span<const double> row, int64_t visible) {
    for (auto owner = static_cast<size_t>(owners.begin); owner < static_cast<size_t>(owners.end);
         ++owner) {
      scores_[owner]->add_row(row, visible);
      if (!deviations_.empty()) deviations_[owner]->add_row(row, visible);
    }
  }

  LayerWork& work_;
  HeadGrouping heads_;
  SharedRows rows_;
  std::vector<std::unique_ptr<SlotStatistic>> scores_;
  std::vector<std::unique_ptr<SlotStatistic>> deviations_;  ///< empty unless std_keep > 0
  Table<double> grouped_;                                   ///< [block rows][n]
};

/// J of a record at budget B, with every prompt entry as a candidate.
Segment decode_segment(const Settings& settings, int64_t budget, const TraceInfo& info);

/// [Hq][N] norm of v_i W^h of prompt and later entries; of the prompt's the layer's own are used.
Table<float> norms_of_all(LayerWork& work, Norm norm);

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

/// The prompt of one layer after selection and merging (policies.md 9).
struct Compressed {
  bool per_query_head = false;
  std::vector<SlotCache> owners;  ///< the slots that stayed, ascending
  /// Per owner what happened before slots were erased: slot i was prompt entry i.
  std::vector<std::vector<int64_t>> evicted;
  std::vector<std::vector<MergeOwner::Step>> steps;
  int64_t undefined_scales = 0;
  std::vector<double> scales;    ///< f of Eq. 7, every merge
  std::vector<PairMerge> pairs;  ///< slots of exactly two entries, when asked for
};

/// Compresses entries 0..n-1 once: what `kept` lists stays, `merge` of the settings says what
/// becomes of the rest. `memory` is carried from one compression of a layer to the next,
/// `estimates` from one set of the layer to another.
Compressed compress(LayerWork& work, const KeptSets& kept, const Settings& settings, uint64_t seed,
                    MergeMemory& memory, FirstEstimates& estimates, bool note_pairs = false);

/// The slots of exactly two entries that merging made just now, before evicted slots are erased.
std::vector<PairMerge> pairs_made(const MergeOwner& owner, const Settings& settings,
                                  int64_t merged_at);

/// An entry of the layer as a slot of its own, the newest.
void append_entry(const LayerTrace& layer, int kv_head, int64_t entry, SlotCache& cache);

/// Does the record change more than which entries there are?
inline bool merges(const Settings& settings) { return chosen<Merge>(settings).merges(); }

/// Kept sets, with the entries that are part of others' slots (mask 2). Of all slots only
/// those at positions below `entries` count, and of their members the same.
std::shared_ptr<KeptSets> kept_after(const std::vector<SlotCache>& owners, const KeptSets& kept,
                                     int64_t entries);

/// Slots that hold at least two entries, over all owners.
int64_t merged_slots(const std::vector<SlotCache>& owners);

}  // namespace kvsim
