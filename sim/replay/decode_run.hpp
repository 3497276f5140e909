#pragma once
#include "sim/replay/decode_slots.hpp"
#include "sim/replay/prefill.hpp"

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

  const AttentionBlock& of(int head) const { return heads[head / heads.front().heads]; }
  /// Number of a query head's row in its block.
  int64_t row(int head, int64_t step) const { return head % heads.front().heads * steps + step; }
  const float* attention(int head, int64_t step) const {
    return of(head).attention_row(0, row(head, step));
  }
  /// Only where asked for.
  const float* logits(int head, int64_t step) const {
    return of(head).logit_row(0, row(head, step));
  }
  double log_sum_exp(int head, int64_t step) const { return of(head).log_sum_exp[row(head, step)]; }
  const float* z(int head, int64_t step, int64_t width) const {
    return of(head).outputs.data() + row(head, step) * width;
  }
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

/// Slots of exactly two entries over time.
class OpenPairs {
 public:
  void add(PairMerge pair);
  /// Pairs end when their slot leaves or takes in a third entry; new ones begin. The newest slot is
  /// that of the query after which this happens.
  void follow(const MergeOwner& owner, const Settings& settings);
  const std::vector<PairMerge>& all() const { return pairs_; }

 private:
  std::vector<PairMerge> pairs_;
  std::map<std::pair<int, uint32_t>, size_t> open_;  ///< by first head and entry c
};

/// One record at one budget on one layer while it decodes: slots, their statistics, and the step of
/// policies.md 12. Time per step is linear in the slots present.
class DecodeRun {
 public:
  DecodeRun(LayerWork& work, const KeptSets& kept, const Settings& settings, uint64_t seed,
            bool note_pairs);

  /// Statistic that has to see the prompt's rows before start(); null when none is kept.
  PromptStatistics* prompt() const { return prompt_.get(); }
  void start();
  /// Steps 1 to 4 for all stored queries of the block.
  void run(const DecodeBlock& block, DecodeSeries& series);

  const std::vector<SlotCache>& owners() const { return owners_; }
  int64_t undefined_scales() const { return undefined_scales_; }
  const std::vector<int64_t>& most_slots() const { return most_slots_; }  ///< so far, per owner
  const std::vector<double>& scales() const { return scales_; }
  const std::vector<PairMerge>& pairs() const { return pairs_.all(); }

 private:
  bool owners_are_apart() const;
  void step(const DecodeBlock& block, int64_t step, DecodeSeries& series);
  void append(size_t owner, int64_t position);
  void attend(size_t owner, const DecodeBlock& block, int64_t step, DecodeSeries& series);
  void evict();
  void drop(size_t owner, std::span<const int64_t> slots);
  // decode_compare.cpp: slots present against the full cache.
  void compare(size_t owner, const DecodeBlock& block, int64_t step, DecodeSeries& series);
  void compare_merged(size_t owner, int x, const DecodeBlock& block, int64_t step,
                      MergeTally& tally) const;

  LayerWork& work_;
  const KeptSets& kept_;
  const Settings& settings_;
  uint64_t seed_;
  bool note_pairs_;
  std::unique_ptr<PromptStatistics> prompt_;
  std::vector<SlotCache> owners_;
  std::vector<OwnerAttention> attention_;
  std::vector<Buffer<float>> queries_;      ///< per owner [heads][d] of the step at work
  std::vector<std::vector<double>> gains_;  ///< per owner, importance of the entries present
  SlotProtection protection_;
  SlotScores scores_;
  SlotVictims victims_;
  MergeMemory memory_;
  int64_t undefined_scales_ = 0;
  std::vector<int64_t> most_slots_;
  std::vector<double> scales_;
  OpenPairs pairs_;
};

}  // namespace kvsim
