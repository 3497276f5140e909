#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Two query heads a and b that read the same values: G = W^a (W^b)^T, so that x G y^T is the inner
/// product of x W^a and y W^b.
struct OutputMetric {
  Table<double> gram;         ///< [dv][dv] G
  std::vector<double> forms;  ///< [n] v_i G v_i^T
};

/// [Hq][n] norm of v_i W^h, for each norm that was asked for.
using ProjectedNorms = std::map<Norm, Table<float>>;

/// One layer at work: what stages and measures may read of it, with the heavy quantities computed
/// once and shared by all policies. Its view ends at the present: queries at positions >= n are
/// refused unless the caller says that it looks ahead (only oracles do), and entries end at n.
class LayerWork {
 public:
  /// `measured`: the norm in the importance that the run measures (--importance).
  LayerWork(const LayerTrace& trace, Backend& backend, Norm measured = Norm::l1);

  const LayerTrace& trace() const { return trace_; }
  const TraceInfo& info() const { return *trace_.info; }
  Backend& backend() const { return backend_; }
  int layer() const { return trace_.layer; }
  const Rotation& rotation() const { return info().rotation(layer()); }
  int64_t entries() const { return info().prompt_len; }       ///< n
  int query_heads() const { return info().num_query_heads; }  ///< Hq
  int kv_heads() const { return info().num_kv_heads; }        ///< Hkv
  int group_size() const { return info().group_size(); }      ///< g
  int64_t value_dim() const { return trace_.value_dim(); }    ///< dv

  Norm measured_norm() const { return measured_norm_; }
  const Table<float>& projected_norms(Norm norm);  ///< [Hq][n] norm of v_i W^h
  const Table<float>& value_norms(Norm norm);      ///< [Hkv][n] norm of v_i
  /// For a layer that is worked on once more: what was computed, and what is known of it.
  ProjectedNorms take_projected_norms() { return std::move(projected_norms_); }
  void set_projected_norms(ProjectedNorms norms) { projected_norms_ = std::move(norms); }

  Table<float> keys(int kv_head) const;    ///< [n][d]
  Table<float> values(int kv_head) const;  ///< [n][dv]
  /// [count][dv]: values up to a later step, for whoever looks ahead.
  Table<float> values_ahead(int kv_head, int64_t count) const;

  /// The layer as a part of a probe sees it.
  const ProbeView& probe_part(int probe, size_t part);

  /// Inner products after W_O of two query heads head_a <= head_b of a group, in float64.
  const OutputMetric& output_metric(int head_a, int head_b);
  void drop_output_metrics() { output_metric_.clear(); }  ///< of use to scoring alone

 private:
  void make_output_metrics(int kv_head, bool of_pairs);

  const LayerTrace& trace_;
  Backend& backend_;
  Norm measured_norm_;
  ProjectedNorms projected_norms_;
  std::map<Norm, Table<float>> value_norms_;
  std::map<std::pair<int, int>, OutputMetric> output_metric_;
  std::map<std::pair<int, size_t>, std::unique_ptr<ProbeView>> probe_parts_;
};

/// Request of a walk over blocks of attention rows.
struct AttentionPass {
  std::span<const int64_t> positions;  ///< queries, ascending; every one must be stored
  bool look_ahead = false;             ///< positions >= n are allowed
  bool logits = false;
  bool outputs = false;
  bool rows_outer = false;  ///< every KV head of some rows before the next rows, not the other way
  int64_t columns = 0;      ///< keys 0..columns-1; 0: n
  /// Tokens of a probe whose rows come after those of `positions`, ascending; with logits or
  /// outputs their blocks have columns for all that their part sees.
  int probe = -1;
  std::span<const int64_t> probe_tokens = {};
};

/// Index among the stored queries of every position; all must be stored. Refuses positions >= n
/// unless `look_ahead`.
std::vector<int64_t> stored_queries(const LayerWork& work, std::span<const int64_t> positions,
                                    bool look_ahead);

/// Calls visit(block, first_row) for all KV heads and rows, a few rows at a time, so that memory
/// stays at some MB whatever n is. Row first_row + r of `positions`, and then of `probe_tokens`, is
/// row r of the block; a block has rows of one part of a probe alone.
void for_each_attention_block(
    LayerWork& work, const AttentionPass& pass,
    const std::function<void(const AttentionBlock& block, int64_t first_row)>& visit);

}  // namespace kvsim
