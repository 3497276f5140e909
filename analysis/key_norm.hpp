#pragma once
#include <span>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/core/array.hpp"

namespace kvsim {

/// Parts of the prompt of nearly equal length, at most `most`: what a curve over positions is drawn
/// from, whatever the length.
std::vector<Range> prompt_parts(int64_t entries, int64_t most);

/// Norms of keys, where they are low, and whether low ones get the attention, which is what Knorm
/// relies on (The Pitfalls, appendix J.5).
class KeyNorm {
 public:
  KeyNorm(int query_heads, int64_t entries);
  /// Rows of later steps: adds up the attention on each prompt entry.
  void add(const AttentionBlock& block, int64_t first_row);

  struct WithAttention {
    double pearson = 0;  ///< of ‖k_i‖ and the attention on i, mean over steps
    double spearman = 0;
  };
  WithAttention with_attention(int query_head, std::span<const double> norms) const;

 private:
  Table<double> attention_;  ///< [Hq][n] sum over steps
};

/// [n] L2 norms of the keys of a KV head.
std::vector<double> key_norms(const LayerTrace& layer, int kv_head);

/// Spearman of norm and position: positive when early keys are the short ones.
double norm_with_position(std::span<const double> norms);

/// Parts that curves over the prompt's positions are drawn from: the dimension `part`.
std::vector<Range> measured_parts(int64_t entries);

}  // namespace kvsim
