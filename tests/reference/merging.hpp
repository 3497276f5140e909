#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/layer_trace.hpp"

namespace kvsim::reference {

/// One query head at one step, compressed against full, everything in float64 and plain sums.
struct MergedStep {
  std::vector<double> change;  ///< z^ - z, [dv]
  double sag = 0;              ///< sums over the head's merged slots
  double defect = 0;
  double value_part = 0;
  double mass_part = 0;
  int slots = 0;  ///< merged slots
};

/// A slot of two entries that merging made, with what was predicted of them (metrics.md 3).
struct MadePair {
  int owner = 0;
  int64_t from = 0, into = 0, merged_at = 0;
  double log_score_from = 0, log_score_into = 0, scale = 1, log_weight = 0;
  std::vector<double> key, value;
};

/// StreamingLLM's selection (sinks and the newest) with a merge, one entry at a time: policies.md
/// 9 and 12 as they are written. Kinds: drop, convex, keepkv, keepkv-bias, cam-expected.
class StreamingMerge {
 public:
  struct Rule {
    std::string merge = "drop";
    double threshold = 0.8;
    int64_t sinks = 4;
    int64_t budget = 8;  ///< B
    double decay = 0.9;  ///< of ema
    int64_t window = 32;
    int64_t cam_targets = 32;
  };
  StreamingMerge(const LayerTrace& layer, Rule rule) : layer_(layer), rule_(std::move(rule)) {}

  /// Entries 0..n-1 as a prompt, compressed once.
  void compress(int64_t n);
  /// A later query with schedule=prefill: entries n..t follow the slots of the prompt. [Hq]
  std::vector<MergedStep> look(int64_t n, int64_t t) const;
  /// A later query with schedule=decode: it joins the slots, looks, and one slot leaves. [Hq]
  std::vector<MergedStep> decode(int64_t t);
  const std::vector<MadePair>& pairs() const { return pairs_; }
  /// The largest factor by which Eq. 7 of KeepKV stretched a key so far; 1 at least.
  double stretch() const { return stretch_; }

 private:
  struct Slot {
    int64_t position = 0;
    std::vector<double> k, v;
    std::vector<int64_t> members;
    std::vector<double> bias;         ///< [heads]
    std::vector<double> sum, weight;  ///< [lines] of the moving average
    double log_score(size_t line) const;
  };
  int heads() const { return layer_.info->group_size(); }
  bool estimates() const { return rule_.merge.starts_with("keepkv"); }
  size_t lines() const;
  Slot entry(int owner, int64_t i) const;
  std::vector<double> query(int head, int64_t t) const;
  std::vector<double> line_query(int owner, size_t line, int64_t t) const;
  double logit(const std::vector<double>& q, const Slot& slot) const;
  double log_weight(const Slot& slot, int x) const;
  std::vector<double> slot_attention(int owner, int64_t t) const;
  void see(int owner, int64_t t);
  void evict(int owner, std::vector<size_t> leaving, int64_t now);
  void merge(int owner, Slot& into, const Slot& from, const std::vector<double>& totals,
             int64_t now);
  MergedStep compare(int head, int64_t n, int64_t t) const;

  const LayerTrace& layer_;
  Rule rule_;
  std::vector<std::vector<Slot>> owners_;
  std::vector<MadePair> pairs_;
  double stretch_ = 1;
};

}  // namespace kvsim::reference
