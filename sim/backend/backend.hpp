#pragma once
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Keys and values that are attended to: entries of a trace or what became of them. Row-major.
struct SlotSegment {
  const float* keys = nullptr;    ///< [count][d]
  const float* values = nullptr;  ///< [count][dv]; null where no outputs are wanted
  int64_t count = 0;
  /// [heads][count] lambda, added to the logits; -inf: not seen; null: all 0.
  const float* log_weight = nullptr;
};

/// Queries of neighbouring query heads that attend to the same slots: those of all segments, in
/// their order. Arrays are row-major, and null where something is not wanted.
struct SlotRows {
  int heads = 0;
  int64_t rows = 0;                ///< queries of each head
  const float* queries = nullptr;  ///< [heads][rows][d]
  std::vector<SlotSegment> segments;
  const int64_t* seen = nullptr;  ///< [rows] how many slots a row sees, the first ones; null: all
  const float* sinks = nullptr;   ///< [heads] logits of the sinks, whose value is 0; null: none

  float* logits = nullptr;        ///< out [heads][rows][slots], weights included; unseen ones -inf
  float* attention = nullptr;     ///< out [heads][rows][slots]
  double* log_sum_exp = nullptr;  ///< out [heads][rows] over what is seen, sink included; or -inf
  float* outputs = nullptr;       ///< out [heads][rows][dv]; 0 where nothing is seen

  int64_t slots() const {
    int64_t sum = 0;
    for (const SlotSegment& segment : segments) sum += segment.count;
    return sum;
  }
};

/// For SlotRows::sinks: those of a layer's query heads from `first_head` on.
inline const float* sinks_from(const LayerTrace& layer, int first_head) {
  return layer.attention_sink.empty() ? nullptr : layer.attention_sink.data() + first_head;
}

enum class Norm { l1, l2 };

/// Asks for rows of full-cache attention of one KV head's query group.
struct AttentionRequest {
  int kv_head = 0;
  std::vector<int64_t> rows;  ///< indices into the stored queries, ascending
  int64_t columns = 0;        ///< keys 0..columns-1 are returned; softmax is over all visible keys
  bool logits = false;        ///< also return the logits
  bool outputs = false;       ///< also return z
};

/// Full-cache attention of the g query heads that share a KV head. All arrays row-major.
struct AttentionBlock {
  int kv_head = 0;
  int heads = 0;  ///< g; head x of the block is query head kv_head * g + x
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<int64_t> positions;   ///< [rows] position of each query
  int probe = -1;                   ///< whose queries: -1: of the trace itself
  size_t part = 0;                  ///< of the probe
  std::vector<int64_t> tokens;      ///< [rows] of the part; empty without a probe
  std::vector<float> attention;     ///< [heads][rows][columns] A; 0 where invisible
  std::vector<float> logits;        ///< [heads][rows][columns]; -inf where invisible
  std::vector<double> log_sum_exp;  ///< [heads][rows] over everything visible, sink included
  std::vector<float> outputs;       ///< [heads][rows][dv] z

  /// Makes room for what is asked for; what is there is of no meaning.
  void shape(const LayerTrace& layer, const AttentionRequest& request) {
    kv_head = request.kv_head;
    heads = layer.info->group_size();
    rows = std::ssize(request.rows);
    columns = request.columns;
    positions.clear();
    for (const int64_t row : request.rows) positions.push_back(layer.info->query_position[row]);
    const auto all = static_cast<size_t>(heads * rows);
    const size_t cells = all * static_cast<size_t>(columns);
    attention.resize(cells);
    logits.resize(request.logits ? cells : 0);
    log_sum_exp.resize(all);
    outputs.resize(request.outputs ? all * static_cast<size_t>(layer.value_dim()) : 0);
  }
  const float* attention_row(int head, int64_t row) const {
    return attention.data() + (head * rows + row) * columns;
  }
  const float* logit_row(int head, int64_t row) const {
    return logits.data() + (head * rows + row) * columns;
  }
  bool of_probe() const { return probe >= 0; }
};

/// A sum over queries, for every key, of something that the full cache's attention A says.
struct AttentionSum {
  enum class Of {
    attention,     ///< A of a query head
    below,         ///< 1 where a query head sees the key and A < bound, else 0
    group_mean,    ///< mean of A over the heads that share a KV head
    group_square,  ///< square of that mean; both are of the same float32 mean
  };
  Of of = Of::attention;
  std::vector<double> weights;  ///< [rows] what each row is multiplied with
  std::vector<double> bounds;   ///< [rows] of `below`; compared in float32

  bool of_groups() const { return of == Of::group_mean || of == Of::group_square; }
  friend bool operator==(const AttentionSum&, const AttentionSum&) = default;
};

/// Asks for sums over queries, whose scores are computed once for all. A sum that does not look at
/// some of the rows gives them weight 0.
struct AttentionSumRequest {
  std::vector<int64_t> rows;  ///< indices into the stored queries, ascending
  int64_t columns = 0;        ///< keys 0..columns-1 are returned
  std::vector<AttentionSum> sums;
};

/// Kept sets of one owner (a KV head or a query head) that are nested over budgets: the set at
/// boundary b is order[0 .. end[b]), and end is ascending. Inside a band between two ends the order
/// of entries is of no meaning.
struct KeptChain {
  std::vector<uint32_t> order;  ///< prompt entries
  std::vector<int64_t> end;     ///< [boundaries]
};

/// One chain per owner; all owners have the same number of boundaries.
struct ReplayPlan {
  bool per_query_head = false;  ///< owners are the Hq query heads instead of the Hkv KV heads
  bool masses_only = false;     ///< only attention and importance sums are wanted, no outputs
  std::vector<KeptChain> owners;
  int64_t boundaries() const { return std::ssize(owners.at(0).end); }
};

/// Block of later steps with the full cache and with each kept set. A "set" is
/// one boundary of one plan; sets are numbered plan by plan, boundary by boundary. Attention is
/// that of the full cache (fractions of the whole softmax); the sums below run over prompt entries
/// 0..n-1 or over later ones n..t. Importance is attention times `ReplayRequest::importance`.
struct ReplayBlock {
  int64_t first_step = 0;  ///< index of the block's first step in 0..T-1
  int64_t steps = 0;
  Table<double> prompt_attention;     ///< [Hq][steps]
  Table<double> prompt_importance;    ///< [Hq][steps]
  Table<double> later_attention;      ///< [Hq][steps]
  Table<double> later_importance;     ///< [Hq][steps]; 0 unless `later_importance` was asked
  std::vector<int64_t> output_steps;  ///< indices in 0..T-1, ascending, of the block's steps
                                      ///< whose outputs are here
  std::vector<float> z;               ///< [Hq][output_steps][dv] output of the full cache
  std::vector<Table<double>> kept_attention;   ///< per set [Hq][steps]
  std::vector<Table<double>> kept_importance;  ///< per set [Hq][steps]
  /// Per set [Hq][output_steps][dv], z_hat - z; null when the plan wants masses only. This is
  /// memory of the backend, on its device, for its Projection and `read_outputs`: until the sink
  /// returns.
  std::vector<float*> delta;
};

struct ReplayRequest {
  std::vector<ReplayPlan> plans;
  const float* importance = nullptr;  ///< [Hq][importance_columns] weights >= 0 of the entries
  int64_t importance_columns = 0;     ///< n, or N when `later_importance`
  bool later_importance = false;
  /// Later steps, ascending, whose outputs will be read; without it all. At other steps only the
  /// sums are sure to be computed: a fifth of the work.
  std::optional<std::vector<int64_t>> output_steps;
  int64_t chunk = 0;  ///< keys per chunk; 0: chosen by the backend
};

/// Norms after W_O. Each x is [Hq][stride][dv], in memory of the host or one `delta` of the
/// ReplayBlock in work; all x of a block are best given at once: W_O is then read once for all.
struct Projection {
  virtual ~Projection() = default;
  /// out[x.size()][steps.size()]: L2 norm over the hidden dimension of sum_h x[h][s] W^h.
  virtual void norms(std::span<const float* const> x, int64_t stride,
                     std::span<const int64_t> steps, double* out) = 0;
  /// out[x.size()][Hq][stride]: L2 norm of x[h][s] W^h, one head at a time, every step.
  virtual void head_norms(std::span<const float* const> x, int64_t stride, double* out) = 0;
};

/// Two query heads a and b that read the same values: what is asked of output_metrics().
struct HeadPair {
  int head_a = 0, head_b = 0;
  double* gram = nullptr;   ///< out [dv][dv]: G = W^a (W^b)^T
  double* forms = nullptr;  ///< out [entries]: v_i G v_i^T
};

/// The heavy verbs, one at a time: a backend keeps memory between calls, so only those that take a
/// KV head, `attend`, `value_norms` and `projected_norms` may run side by side. No result depends
/// on the number of threads. Selection never runs here. `layer.q` holds queries at
/// `layer.info->query_position`; visibility is causal (layers with a sliding window below N never
/// get here, except in `attention`, which honours it).
struct Backend {
  virtual ~Backend() = default;
  virtual std::string name() const = 0;    ///< "cpu", "cuda"
  virtual std::string device() const = 0;  ///< processor and instruction set, for the run record
  /// How many numbers callers best ask of one call, where they are free to choose: what stays in a
  /// processor's caches, or what keeps a device busy for longer than the call takes.
  virtual int64_t values_at_once() const { return int64_t{1} << 20; }

  /// Rows of softmax attention (policies.md 1): scale, softcap, sink and window honoured.
  virtual void attention(const LayerTrace& layer, const AttentionRequest& request,
                         AttentionBlock& block) = 0;

  /// One table [Hq][columns], or [Hkv][columns] of groups, for each sum, without ever holding A:
  /// what H2O and all whose aggregation is linear ask for. What else is asked for changes no bit of
  /// a sum. No sliding window.
  virtual std::vector<Table<double>> attention_sums(const LayerTrace& layer,
                                                    const AttentionSumRequest& request) = 0;

  /// Softmax attention over slots (metrics.md 2): scale, softcap, sinks and log-weights honoured.
  /// Of the layer no more is read than scale, softcap and head sizes. May be called side by side.
  virtual void attend(const LayerTrace& layer, std::span<const SlotRows> owners) = 0;

  /// Inner products after W_O of pairs of query heads of one group, in float64: |x W^a|^2 is
  /// x G_aa x^T.
  virtual void output_metrics(const LayerTrace& layer, std::span<const HeadPair> pairs,
                              Range entries) = 0;

  /// out[rows][entries.size()] = y_r . v_i for y[rows][dv], in float64.
  virtual void value_products(const LayerTrace& layer, int kv_head, const double* y, int64_t rows,
                              Range entries, double* out) = 0;

  /// out[Hq][entries.size()] = norm of v_i W^h for the entries of the range.
  virtual void projected_norms(const LayerTrace& layer, Norm norm, Range entries, float* out) = 0;

  /// out[Hkv][entries.size()] = norm of v_i.
  virtual void value_norms(const LayerTrace& layer, Norm norm, Range entries, float* out) = 0;

  /// Replays every later step t (stored queries at positions >= n) against all kept sets: entries
  /// kept plus all later positions n..t. Calls `sink` once per block of steps, in ascending order.
  virtual void replay(const LayerTrace& layer, const ReplayRequest& request,
                      const std::function<void(const ReplayBlock&)>& sink) = 0;

  /// Copies `count` floats of a `delta` of the ReplayBlock in work, or of the host, to the host.
  virtual void read_outputs(const float* delta, int64_t count, float* out) = 0;

  /// W_O of a layer, prepared for many projections. The layer must outlive it.
  virtual std::unique_ptr<Projection> projection(const LayerTrace& layer) = 0;
};

std::unique_ptr<Backend> make_cpu_backend();

/// Attention of some queries of one head of the full cache beside some entries.
struct RestAttention {
  std::vector<double> log_mass;  ///< [queries] ln of the sum of exp(logit), sink included; or -inf
  Table<double> mean;            ///< [queries][dv] by exp(logit); a sink has value 0
};

/// Summed over the entries themselves, so exact however little attention they have; 1 - a from
/// float32 attention is not, once a is near 1. `queries`: indices into the stored queries;
/// `without`: entries to leave out.
RestAttention rest_attention(Backend& backend, const LayerTrace& layer, int head,
                             std::span<const int64_t> queries, std::span<const uint32_t> without);

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
  LayerWork(const LayerTrace& trace, Backend& backend, Norm measured = Norm::l1)
      : trace_(trace), backend_(backend), measured_norm_(measured) {}

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
  /// [Hq][n] norm of v_i W^h
  const Table<float>& projected_norms(Norm norm) {
    const auto [at, fresh] = projected_norms_.try_emplace(norm, query_heads(), entries());
    if (fresh) backend_.projected_norms(trace_, norm, {0, entries()}, at->second.data());
    return at->second;
  }
  /// [Hkv][n] norm of v_i
  const Table<float>& value_norms(Norm norm) {
    const auto [at, fresh] = value_norms_.try_emplace(norm, kv_heads(), entries());
    if (fresh) backend_.value_norms(trace_, norm, {0, entries()}, at->second.data());
    return at->second;
  }
  /// For a layer that is worked on once more: what was computed, and what is known of it.
  ProjectedNorms take_projected_norms() { return std::move(projected_norms_); }
  void set_projected_norms(ProjectedNorms norms) { projected_norms_ = std::move(norms); }

  /// [n][d]
  Table<float> keys(int kv_head) const {
    Table<float> k(entries(), trace_.k.dim(2));
    trace_.k.read(kv_head, 0, entries(), k.data());
    return k;
  }
  Table<float> values(int kv_head) const { return values_ahead(kv_head, entries()); }  ///< [n][dv]
  /// [count][dv]: values up to a later step, for whoever looks ahead.
  Table<float> values_ahead(int kv_head, int64_t count) const {
    Table<float> v(count, value_dim());
    trace_.v.read(kv_head, 0, count, v.data());
    return v;
  }

  /// The layer as a part of a probe sees it.
  const ProbeView& probe_part(int probe, size_t part) {
    std::unique_ptr<ProbeView>& view = probe_parts_[{probe, part}];
    if (!view) view = probe_view(trace_, probe, part);
    return *view;
  }

  /// Inner products after W_O of two query heads head_a <= head_b of a group, in float64.
  const OutputMetric& output_metric(int head_a, int head_b) {
    if (!output_metric_.contains({head_a, head_b}))
      make_output_metrics(head_a / group_size(), head_a != head_b);
    return output_metric_.at({head_a, head_b});
  }
  void drop_output_metrics() { output_metric_.clear(); }  ///< of use to scoring alone

 private:
  /// Of all heads of a group, each with itself or with all that come after it: values are read
  /// once.
  void make_output_metrics(int kv_head, bool of_pairs) {
    const int first = kv_head * group_size(), last = first + group_size();
    std::vector<HeadPair> pairs;
    for (int a = first; a < last; ++a)
      for (int b = of_pairs ? a + 1 : a; b < (of_pairs ? last : a + 1); ++b) {
        OutputMetric& metric = output_metric_[{a, b}];
        metric.gram = Table<double>(value_dim(), value_dim());
        metric.forms.resize(entries());
        pairs.push_back({a, b, metric.gram.data(), metric.forms.data()});
      }
    backend_.output_metrics(trace_, pairs, {0, entries()});
  }

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

/// R [size][size] with R^T R = G, so that |x W| = |R x| for G = W W^T.
struct GramFactor {
  Table<double> r;
  bool triangular = false;  ///< r(c, k) = 0 for k < c
};

/// Of a symmetric matrix without negative eigenvalues: its Cholesky factor, or, where G is not
/// numerically positive definite (W has fewer columns than rows, or equal rows), the square root of
/// the eigendecomposition, which is no triangle but needs no positive eigenvalue.
GramFactor factor_of_gram(const Table<double>& gram);

}  // namespace kvsim
