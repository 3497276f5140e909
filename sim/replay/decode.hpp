#pragma once
#include "sim/replay/compression.hpp"
#include "sim/replay/prefill.hpp"
#include "sim/replay/slots.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {

/// Some later steps of the full cache, all heads, as decoding compares with them.
struct DecodeBlock {
  int64_t first_step = 0;
  int64_t steps = 0;
  std::vector<AttentionBlock> heads;         ///< [Hkv]; columns 0..last position, outputs, logits
  ShareSums total;                           ///< on entries before the query
  const Table<float>* importance = nullptr;  ///< [Hq][N] weight of each entry
  bool count_query = false;                  ///< the query's own entry belongs to the scope
  bool leave_out_guarded = false;            ///< guarded entries do not
  const PromptParts* parts = nullptr;        ///< of the prompt, summed apart
  std::vector<Table<double>> part_total;     ///< [parts][Hq][steps]
  /// Row of a query head: attention, logits (only where asked for).
  const float* attention(int head, int64_t step) const;
  const float* logits(int head, int64_t step) const;
  double log_sum_exp(int head, int64_t step) const;
  const float* z(int head, int64_t step, int64_t width) const;
};

/// Numbers of one record at one budget over a block of steps.
struct DecodeSeries {
  DecodeSeries(int64_t heads, int64_t steps, int64_t width, size_t parts);
  ShareSums kept;
  ShareSums guarded;                     ///< on entries that were protected (--scope evictable)
  Table<double> guarded_entries;         ///< [Hq][steps] how many
  std::vector<Table<double>> part_kept;  ///< [parts][Hq][steps] importance
  std::vector<Table<double>> part_guarded;
  std::vector<float> delta;  ///< [Hq][steps][dv]
  MergeTally merges;
};

/// One record at one budget on one layer while it decodes: slots, their statistics, and the step of
/// policies.md 12. Time per step is linear in the slots present.
class DecodeRun {
 public:
  DecodeRun(LayerWork& work, const KeptSets& kept, const Settings& settings, uint64_t seed);
  ~DecodeRun();

  /// Statistic that has to see the prompt's rows before start(); null when none is kept.
  PromptStatistics* prompt() const { return prompt_.get(); }
  /// Slots of exactly two entries are noted; to be asked for before start().
  void note_pairs() { note_pairs_ = true; }
  void start();
  /// Steps 1 to 4 for all stored queries of the block.
  void run(const DecodeBlock& block, DecodeSeries& series);

  const std::vector<SlotCache>& owners() const { return owners_; }
  int64_t undefined_scales() const { return undefined_scales_; }
  const std::vector<int64_t>& most_slots() const { return most_slots_; }  ///< so far, per owner
  const std::vector<double>& scales() const { return scales_; }
  const std::vector<PairMerge>& pairs() const { return pairs_; }

 private:
  /// One owner's attention at the step at work.
  struct Scratch {
    Table<double> logits;           ///< [heads][slots] of the slots' own keys, where merging asks
    Table<double> attention;        ///< [heads][slots] A^, where something asks for it
    std::vector<float> moved_keys;  ///< [rows][d], positions=cache only
    RotationMemory rotation;
    Buffer<float> queries, outputs;  ///< [heads][d], [heads][dv]
    Buffer<float> rows, weights;     ///< [heads][rows of the cache] logits, log-weights
    Buffer<float> shares;            ///< [heads][rows of the cache] attention
    std::vector<double> scores;      ///< [slots], of those that may leave
    std::vector<double> gains;       ///< importance of the entries present
  };
  /// body(owner) for all owners, in parallel where so many steps are worth the start of a parallel
  /// loop.
  void for_owners(int64_t steps, const std::function<void(size_t)>& body) const;
  bool owners_are_apart() const;
  void step(const DecodeBlock& block, int64_t step, DecodeSeries& series);
  void append(size_t owner, int64_t position);
  void attend(size_t owner, const DecodeBlock& block, int64_t step, DecodeSeries& series);
  bool write_weights(size_t owner);
  void read_attention(size_t owner, bool weighs);
  void compare(size_t owner, const DecodeBlock& block, int64_t step, DecodeSeries& series);
  void compare_merged(size_t owner, int x, const DecodeBlock& block, int64_t step,
                      MergeTally& tally) const;
  void add_pair(PairMerge pair);
  void follow_pairs(const MergeOwner& owner);
  const float* keys_in_place(size_t owner, int64_t position);
  void see_estimates(size_t owner);
  Table<double> grouped_rows(size_t owner) const;
  void add_row(size_t owner, std::span<const double> row);
  void update_statistics();
  std::vector<double> layer_row(size_t owner, const std::vector<double>& by_position) const;
  std::vector<int64_t> victims(size_t owner);
  void find_newest_protected();
  bool is_protected(size_t owner, int64_t slot) const;
  const std::vector<double>& slot_scores(size_t owner);
  const std::vector<double>& scores_of(size_t owner);
  void unite_scores();
  std::vector<int64_t> lowest_blocks(size_t owner, const std::vector<int64_t>& open, int64_t least);
  void start_scorers();
  void start_memory(const std::vector<std::vector<int64_t>>& evicted);
  void score_by_queries(size_t owner, std::vector<double>& scores) const;
  void recall(size_t owner, std::span<double> scores);
  void smooth_slots(std::span<double> scores) const;
  void pool_scores(size_t owner, std::vector<double>& scores);
  int64_t lowest(size_t owner);
  void evict();
  void drop(size_t owner, std::span<const int64_t> slots);
  void weigh(size_t owner, int64_t slot);
  void sum_over_heads(int64_t position);
  void merge_statistics(size_t owner, const std::vector<MergeOwner::Step>& steps);
  void erase_statistics(size_t owner, std::span<const int64_t> slots);

  LayerWork& work_;
  const KeptSets& kept_;
  const Settings& settings_;
  uint64_t seed_;
  std::unique_ptr<PromptStatistics> prompt_;
  std::vector<SlotCache> owners_;
  std::vector<std::unique_ptr<SlotStatistic>> scores_;  ///< per owner, or empty
  std::vector<std::unique_ptr<SlotStatistic>> deviations_;
  std::vector<std::unique_ptr<SlotScorer>> scorers_;  ///< per owner, or empty
  std::vector<std::vector<double>> remembered_;  ///< score of each slot before, NaN: none; or empty
  std::vector<std::vector<double>> weights_;     ///< w of each slot, or empty
  std::vector<std::vector<Table<float>>> outputs_;  ///< W^h of the owner's heads, or empty
  std::vector<double> token_weight_;                ///< [N] of the heads in all, or empty
  std::vector<uint8_t> whitelisted_;                ///< [n]
  std::vector<int64_t> window_;                     ///< [owners] newest slots that are not scored
  std::vector<int64_t> newest_protected_;           ///< [owners]
  int64_t sinks_ = 0;
  bool any_whitelisted_ = false, keeps_prompt_ = false;
  std::vector<Scratch> scratch_;     ///< per owner
  bool united_ = false;              ///< scores in scratch_ are those of all owners together
  bool reads_attention_;             ///< of slots: statistics or merging
  std::vector<double> by_position_;  ///< [N] of a layer's row, or empty
  MergeMemory memory_;
  int64_t undefined_scales_ = 0;
  std::vector<int64_t> most_slots_;
  std::vector<double> scales_;
  bool note_pairs_ = false;
  std::vector<PairMerge> pairs_;
  std::map<std::pair<int, uint32_t>, size_t> open_pairs_;  ///< by first head and entry c
};

/// schedule=decode: the budget is held at every step (policies.md 12). A replay of T steps costs
/// O(T * B) per record and budget, beside one pass over the full cache that all share.
class DecodeReplay {
 public:
  /// `kept` is [record][budget], null where another loop replays the cell; everything given must
  /// outlive the replay.
  DecodeReplay(LayerWork& work, const LayerKept& kept, const std::vector<Record>& records,
               const PrefillOptions& options);

  const std::vector<ReplayOutcome>& outcomes() const { return outcomes_; }
  /// Calls `sink` with blocks of steps in ascending order, without the full cache's own numbers.
  void run(const std::function<void(const StepBlock&)>& sink);

 private:
  void start_runs(std::vector<std::unique_ptr<DecodeRun>>& runs);
  void read_block(int64_t first, int64_t steps, const Table<float>& importance,
                  DecodeBlock& block) const;
  RetainedSums sums_of(const DecodeBlock& full, const DecodeSeries& series) const;

  LayerWork& work_;
  PrefillOptions options_;
  std::vector<ReplayOutcome> outcomes_;
};

}  // namespace kvsim
