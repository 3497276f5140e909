#pragma once
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sim/backend/backend.hpp"

namespace kvsim {

/// One layer at work: what stages and measures may read of it, with the heavy quantities computed
/// once and shared by all policies. Its view ends at the present: queries at positions >= n are
/// refused unless the caller says that it looks ahead (only oracles do), and entries end at n.
class LayerWork {
 public:
  LayerWork(const LayerTrace& trace, Backend& backend);

  const LayerTrace& trace() const { return trace_; }
  const TraceInfo& info() const { return *trace_.info; }
  Backend& backend() const { return backend_; }
  int layer() const { return trace_.layer; }
  int64_t entries() const { return info().prompt_len; }          ///< n
  int query_heads() const { return info().num_query_heads; }     ///< Hq
  int kv_heads() const { return info().num_kv_heads; }           ///< Hkv
  int group_size() const { return info().group_size(); }         ///< g
  int64_t value_dim() const { return trace_.value_dim(); }       ///< dv

  /// Full-cache attention of the queries at `positions` (all stored) over keys 0..n-1.
  void attention(int kv_head, std::span<const int64_t> positions, bool look_ahead, bool logits,
                 bool outputs, AttentionBlock& block) const;

  const Table<float>& projected_norms(Norm norm);   ///< [Hq][n] norm of v_i W^h
  const Table<float>& value_norms(Norm norm);       ///< [Hkv][n] norm of v_i

  Table<float> keys(int kv_head) const;             ///< [n][d]
  Table<float> values(int kv_head) const;           ///< [n][dv]

  /// Factor F^h of W^h (W^h)^T = F^T F for one head, or for the g heads of a KV head stacked
  /// ([g*dv][g*dv]): the L2 norm of x W is that of F x. Column-major Eigen layout in a Table
  /// [rows][columns] = F.
  const Table<double>& output_factor(int query_head);
  const Table<double>& group_output_factor(int kv_head);

 private:
  const LayerTrace& trace_;
  Backend& backend_;
  std::map<Norm, Table<float>> projected_norms_;
  std::map<Norm, Table<float>> value_norms_;
  std::map<int, Table<double>> output_factor_;
  std::map<int, Table<double>> group_factor_;
};

}  // namespace kvsim
