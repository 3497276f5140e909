#pragma once
#include "sim/replay/compression.hpp"
#include "sim/replay/slots.hpp"
#include "sim/stages/indicator/indicator.hpp"

/// Slots of one layer while it decodes: how a query attends to them, what protects them, what they
/// score, and which leave (policies.md 12). `owners` are the caches of the layer; whoever is given
/// them reads them and does not change them.
namespace kvsim {

/// body(owner) for all owners, in parallel where so many steps are worth the start of a parallel
/// loop.
void for_owners(const std::vector<SlotCache>& owners, int64_t steps,
                const std::function<void(size_t)>& body);

/// One owner's attention at the step at work.
class OwnerAttention {
 public:
  OwnerAttention(LayerWork& work, const Settings& settings);

  /// Softmax of the queries [heads][d] of the step over the slots present, log-weights and sink
  /// included; returns the outputs [heads][dv].
  const float* attend(const SlotCache& cache, const float* queries);
  /// Estimates see the slots' own logits: keys as stored, no log-weights.
  void show(const SlotCache& cache, Estimates& estimates) const;

  /// [heads][slots] A^, and logits of the slots' own keys; where something asks for them.
  const Table<double>& attention() const { return attention_; }
  const Table<double>& logits() const { return logits_; }

 private:
  const float* keys_in_place(const SlotCache& cache);
  bool write_weights(const SlotCache& cache);
  void read(const SlotCache& cache, bool weighs);

  LayerWork& work_;
  const Settings& settings_;
  bool reads_attention_;  ///< of slots: statistics or merging
  Table<double> attention_, logits_;
  std::vector<float> moved_keys_;  ///< [rows][d], positions=cache only
  RotationMemory rotation_;
  Buffer<float> outputs_;         ///< [heads][dv]
  Buffer<float> rows_, weights_;  ///< [heads][rows of the cache] logits, log-weights
  Buffer<float> shares_;          ///< [heads][rows of the cache] attention
};

/// Slots that no score can evict: whitelist, sinks, the newest, and with keep_prompt the prompt.
class SlotProtection {
 public:
  SlotProtection(const LayerWork& work, const KeptSets& kept, const Settings& settings);

  bool holds(size_t owner, const SlotCache& cache, int64_t slot) const {
    const int64_t position = cache.position(slot);
    return slot >= cache.size() - newest_[owner] || position < sinks_ ||
           (position < entries_ && (keeps_prompt_ || (any_listed_ && listed_[position])));
  }
  int64_t window(size_t owner) const { return window_[owner]; }  ///< newest that are not scored
  int64_t newest(size_t owner) const { return newest_[owner]; }  ///< newest that stay
  /// Position behind the sinks, and behind the prompt where it stays.
  int64_t first_open() const { return keeps_prompt_ ? std::max(sinks_, entries_) : sinks_; }

 private:
  int64_t entries_, sinks_;
  bool keeps_prompt_, any_listed_;
  std::vector<uint8_t> listed_;           ///< [n] 1: on the record's whitelist
  std::vector<int64_t> window_, newest_;  ///< [owners]
};

/// The factor w of every slot (stage `weight`); nothing where the record weighs nothing.
class SlotWeights {
 public:
  SlotWeights(const LayerWork& work, const std::vector<SlotCache>& owners, const Settings& settings)
      : work_(work), owners_(owners), settings_(settings) {}

  void start();
  /// Is an entry weighed against all heads together?
  bool of_all_heads() const { return !token_weight_.empty(); }
  /// Weight of an entry in all heads together, by its own values: other heads may no longer hold
  /// it.
  void sum_over_heads(int64_t position);
  void append(size_t owner);
  void erase(size_t owner, std::span<const int64_t> slots);
  void weigh_all(size_t owner);  ///< once more: merges change values
  void apply(size_t owner, std::span<double> scores) const;

 private:
  void weigh(size_t owner, int64_t slot);

  const LayerWork& work_;
  const std::vector<SlotCache>& owners_;
  const Settings& settings_;
  std::vector<std::vector<double>> weights_;        ///< w of each slot, or empty
  std::vector<std::vector<Table<float>>> outputs_;  ///< W^h of the owner's heads, or empty
  std::vector<double> token_weight_;                ///< [N] of the heads in all, or empty
};

/// Scores of the slots present, the higher the longer a slot stays: of rows of attention, of what
/// an entry is, or of all queries so far.
class SlotScores {
 public:
  SlotScores(const LayerWork& work, const std::vector<SlotCache>& owners, const KeptSets& kept,
             const Settings& settings, uint64_t seed, const SlotProtection& protection);

  /// `prompt`: statistics that saw the prompt's rows; null: none are kept.
  void start(PromptStatistics* prompt, const Compressed& compressed);
  /// Does no owner ask another one for anything?
  bool owners_are_apart() const;

  /// The newest entry became a slot of an owner, and its query of head x came.
  void append(size_t owner);
  void see_query(size_t owner, int x, std::span<const float> query);
  /// Attention of the newest query: of one owner, where they are apart, or of all.
  void see(size_t owner, const OwnerAttention& attention);
  void see(std::span<const OwnerAttention> attention);
  void merge(size_t owner, const std::vector<MergeOwner::Step>& steps);
  void erase(size_t owner, std::span<const int64_t> slots);

  /// One score for what all owners hold of an entry, where some leave: they hold the same entries.
  void unite();
  const std::vector<double>& of(size_t owner);
  /// Deviations of the rows, whose largest stay (RoCo); null: not kept.
  const SlotStatistic* deviations(size_t owner) const {
    return deviations_.empty() ? nullptr : deviations_[owner].get();
  }
  SlotWeights& weights() { return weights_; }

 private:
  Table<double> grouped_rows(size_t owner, const OwnerAttention& attention) const;
  void add_row(size_t owner, std::span<const double> row);
  void follow_queries();
  void remember(const std::vector<std::vector<int64_t>>& evicted);
  void recall(size_t owner, std::span<double> scores);
  void score_by_queries(size_t owner, std::vector<double>& scores) const;
  void smooth(std::span<double> scores) const;
  void pool(size_t owner, std::vector<double>& scores);
  const std::vector<double>& score(size_t owner);

  const LayerWork& work_;
  const std::vector<SlotCache>& owners_;
  const KeptSets& kept_;
  const Settings& settings_;
  uint64_t seed_;
  const SlotProtection& protection_;
  const ScoresSlotRows* of_rows_;  ///< what the indicator can; null: it cannot
  const ScoresSlots* of_slots_;
  const FollowsQueries* of_queries_;
  std::vector<std::unique_ptr<SlotStatistic>> statistics_;  ///< per owner, or empty
  std::vector<std::unique_ptr<SlotStatistic>> deviations_;
  std::vector<std::unique_ptr<SlotScorer>> scorers_;
  std::vector<std::vector<double>> remembered_;  ///< score of each slot before, NaN: none; or empty
  std::vector<double> by_position_;              ///< [N] of a layer's row, or empty
  std::vector<std::vector<double>> scores_;      ///< per owner, those asked for last
  bool united_ = false;                          ///< they are those of all owners together
  SlotWeights weights_;
};

/// Slots that leave an owner that is over its budget and its buffer.
class SlotVictims {
 public:
  SlotVictims(const LayerWork& work, const std::vector<SlotCache>& owners, const KeptSets& kept,
              const Settings& settings, const SlotProtection& protection, SlotScores& scores)
      : layer_(work.layer()), owners_(owners), kept_(kept), settings_(settings),
        protection_(protection), scores_(scores) {}

  std::vector<int64_t> of(size_t owner);  ///< ascending

 private:
  int64_t lowest(size_t owner);
  std::vector<int64_t> lowest_blocks(size_t owner, const std::vector<int64_t>& open, int64_t least);
  void leave_out_deviating(size_t owner, std::vector<int64_t>& open) const;

  int layer_;
  const std::vector<SlotCache>& owners_;
  const KeptSets& kept_;
  const Settings& settings_;
  const SlotProtection& protection_;
  SlotScores& scores_;
};

}  // namespace kvsim
