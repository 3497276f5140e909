#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "sim/core/layer_trace.hpp"

namespace kvsim::reference {

/// R-KV's redundancy of entries with these keys, newest last: softmax over entries of the mean over
/// rows of cosines, 0 with itself; of each row the newest above the threshold, else the first, is
/// 0; with `first_stays` only one above the threshold.
std::vector<double> key_redundancy(const std::vector<std::vector<double>>& keys, double threshold,
                                   bool first_stays = false);

/// schedule=decode of one layer without merging, one entry at a time in float64: policies.md 12 as
/// it is written. What the prompt keeps, and so how many slots each owner holds, is given.
class Decoding {
 public:
  enum class Statistic { position, random, sum, mean_visible, mean, last, trigonometric };
  /// What a record does, said apart from its stages.
  struct Rule {
    Statistic statistic = Statistic::sum;
    bool mean_of_layer = false;  ///< one row for all heads
    int64_t first_row = 0;       ///< of the prompt's observing queries; they end with the prompt
    int64_t newest = 0;          ///< slots that are safe,
    double newest_share = 0;     ///< of the owner's budget, if that is more
    int64_t sinks = 0;
    bool value_weight = false;  ///< scores are multiplied by the entry's L2 norm of the value,
    bool over_heads = false;    ///< and divided by the sum of these over the KV heads
    enum class Fold { mean, sum, max } fold = Fold::mean;  ///< of the heads that share an owner
    int64_t window = 0;         ///< newest slots without a score; safe, too
    int64_t pooled = 1;         ///< scores are the largest of so many neighbouring slots
    double mix = -1;            ///< >= 0: share of the score beside key_redundancy()
    double decay = -1;          ///< >= 0: of remembered scores (G-KV); redundancy is scaled, too
    int64_t reach = 0;          ///< largest distance ahead of `trigonometric`
    double batch_share = 0;     ///< of the owner's places leaves at once, at least one slot
    int64_t buffer = 0;         ///< slots beside the budget; over both, all above it leave
    bool keeps_prompt = false;  ///< entries of the prompt are safe
    bool united = false;        ///< scores of all owners become their mean
    int64_t block = 1;          ///< entries that leave together
    int64_t places = 0;         ///< of every owner that keeps the whole prompt, if more
  };
  /// `kept`: of the prompt, per KV head, or per query head when `per_query_head`.
  Decoding(const LayerTrace& layer, const Rule& rule, const std::vector<std::vector<int64_t>>& kept,
           bool per_query_head);

  /// One later step; fills kept attention and z^ - z per query head.
  void step(int64_t row);

  std::vector<std::vector<bool>> present;   ///< [owner][N]
  std::vector<double> kept_attention;       ///< [Hq] on present entries before the query
  std::vector<std::vector<double>> change;  ///< [Hq][dv]

 private:
  void see(int64_t row, bool of_present);
  double weight(size_t owner, size_t entry) const;
  double statistic(size_t owner, size_t entry) const;
  double score(size_t owner, size_t entry) const;
  std::vector<double> scores(size_t owner, const std::vector<size_t>& slots);
  std::vector<size_t> lowest(size_t owner, int64_t newest);
  std::vector<double> joint_scores(size_t owner, const std::vector<size_t>& slots);
  std::vector<size_t> lowest_blocks(const std::vector<size_t>& all, const std::vector<size_t>& open,
                                    const std::vector<double>& score, int64_t least) const;
  std::vector<double> by_centre(size_t owner, const std::vector<size_t>& slots) const;

  const LayerTrace& layer_;
  const TraceInfo& info_;
  Rule rule_;
  int heads_;                                           ///< that share an owner
  std::vector<int64_t> budget_;                         ///< [owner]
  std::vector<int64_t> seen_;                           ///< positions of the rows seen
  std::vector<std::map<size_t, double>> remembered_;    ///< [owner] by entry
  std::vector<std::vector<std::vector<double>>> rows_;  ///< [owner][seen][N]
};

}  // namespace kvsim::reference
