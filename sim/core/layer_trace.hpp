#pragma once
#include "sim/core/tensor.hpp"

namespace kvsim {

/// A root-mean-square norm, or a gain alone.
struct PathNorm {
  std::vector<float> gain;  ///< [Hq * dv] or [D]; empty: there is none
  bool divides = false;     ///< by the root; else the gain alone is multiplied with
  double eps = 0;
  std::vector<float> rms;  ///< [M] roots at the stored queries, where it divides
  double usual = 1;        ///< root that W* is divided by

  /// Root of the mean square, from the sum over `count` numbers.
  double root(double sum_of_squares, double count) const {
    return std::sqrt(sum_of_squares / count + eps);
  }
};

/// Everything beside W_O between a layer's heads and the residual stream (trace-format.md 8).
struct OutputPath {
  Tensor wo;                      ///< [Hq][dv][D] as stored; empty: W_O is all there is
  Tensor gate;                    ///< [Hq][M][dv] or [Hq][M][1]; empty: none
  std::vector<float> usual_gate;  ///< [Hq * dv] with which W* is multiplied; empty without a gate
  PathNorm inner, outer;

  bool empty() const { return gate.empty() && inner.gain.empty() && outer.gain.empty(); }
  /// A layer's share of the stream is more than a product with W*.
  bool needs_evaluation() const { return !gate.empty() || inner.divides || outer.divides; }
  /// Gate of a head at a stored query: out[dv].
  void read_gate(int64_t head, int64_t query, std::vector<float>& out) const {
    out.resize(gate.dim(2));
    gate.read(head, query, query + 1, out.data());
  }
};

/// Labelled, half-open range of prompt positions.
struct Span {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Tokens of a probe that the model read in one go behind the prompt: they see all of the prompt
/// and, where the probe has keys, those of their part up to themselves.
struct ProbePart {
  Range tokens;  ///< of the probe's P
  Range reads;   ///< prompt entries that it reads once more; empty: none in particular
};

/// A further set of queries over the same cache (trace-format "Probes").
struct ProbeInfo {
  std::string name;
  std::vector<int64_t> position;  ///< [P] ascending in each part, all >= n
  std::vector<ProbePart> parts;   ///< they cover the P tokens in their order
  int64_t answer_begin = 0;       ///< first token of the answer; 0: it has none
  bool has_keys = false;
  bool has_residual_norm = false;
  bool has_input_norm = false;
  bool has_output_gradient = false;
  std::vector<int64_t> check_token;  ///< [R] tokens whose outputs were recorded

  int64_t tokens() const { return std::ssize(position); }  ///< P
  /// Tokens that may observe: those before the answer.
  int64_t observing() const { return answer_begin > 0 ? answer_begin : tokens(); }
};

/// How a layer rotates keys and queries: pair j of dimensions turns by position * inv_freq[j], the
/// other dimensions stay.
struct Rotation {
  std::vector<double> inv_freq;  ///< [r], r <= d/2; empty: not known; zeros: no positions
  bool interleaved = false;      ///< pairs of neighbours, else of halves of the rotated part
  int64_t first = 0;             ///< dimension with which the rotated part begins
  double attention_factor = 1;   ///< by which the model multiplies the rotated part

  size_t pairs() const { return inv_freq.size(); }  ///< r
  size_t first_of(size_t j) const { return static_cast<size_t>(first) + (interleaved ? 2 * j : j); }
  size_t second_of(size_t j) const { return first_of(j) + (interleaved ? 1 : pairs()); }
};

/// Facts of the whole run that a trace holds: the shapes of trace-format "Root attributes".
struct TraceInfo {
  std::string path;
  std::string model;
  std::string source;       ///< JSON text, empty when absent
  int num_layers = 0;       ///< layers of the model
  int num_query_heads = 0;  ///< Hq
  int num_kv_heads = 0;     ///< Hkv
  int64_t head_dim = 0;     ///< d
  int64_t hidden_size = 0;  ///< D
  int64_t latent_size = 0;  ///< numbers of a token that the model's cache holds; 0: keys and values
  int64_t prompt_len = 0;   ///< n
  int64_t total_len = 0;    ///< N
  double attention_scale = 0;
  std::vector<int64_t> query_position;  ///< [M] ascending positions with a stored query
  std::vector<int> layers;              ///< layers in the file, ascending
  std::vector<Span> spans;
  Rotation rope;                       ///< of all layers but these
  std::map<int, Rotation> layer_rope;  ///< by layer
  std::string rope_missing;            ///< why layers have none, where the trace says so
  bool has_residual_norm = false;
  std::vector<int64_t> check_position;  ///< [R], empty when absent
  std::vector<ProbeInfo> probes;        ///< by name

  int group_size() const { return num_query_heads / num_kv_heads; }  ///< g
  /// Index of the first stored query at position >= n; M if none.
  int64_t first_step() const {
    const auto first = std::lower_bound(query_position.begin(), query_position.end(), prompt_len);
    return first - query_position.begin();
  }
  /// [T] positions of the queries at or after n.
  std::span<const int64_t> later_queries() const {
    return std::span(query_position).subspan(first_step());
  }
  /// T: number of stored queries at positions >= n.
  int64_t steps() const { return std::ssize(query_position) - first_step(); }
  const Rotation& rotation(int layer) const {
    const auto own = layer_rope.find(layer);
    return own == layer_rope.end() ? rope : own->second;
  }
  /// Number of the probe of that name; -1 if there is none.
  int find_probe(std::string_view name) const {
    const auto found = std::ranges::find_if(
        probes, [&](const ProbeInfo& probe) { return probe.name == name; });
    return found == probes.end() ? -1 : static_cast<int>(found - probes.begin());
  }
};

struct ProbeLayer {
  Tensor q;                            ///< [Hq][P][d]
  Tensor k;                            ///< [Hkv][P][d] or empty
  Tensor v;                            ///< [Hkv][P][dv] or empty
  Tensor gate;                         ///< [Hq][P][dv or 1] or empty
  std::vector<float> residual_norm;    ///< [P] or empty
  std::vector<float> input_norm;       ///< [P] or empty: norm of what enters the attention
  std::vector<float> output_gradient;  ///< [P] or empty: norm of the gradient at what it adds
  std::vector<float> check_output;     ///< [Hq][R][dv] or empty; read for `verify` only
};

/// One layer in memory. Position i is visible to position p when i <= p and i > p - W.
struct LayerTrace {
  const TraceInfo* info = nullptr;
  int layer = 0;
  double scale = 0;                   ///< logits are scale * q.k
  double softcap = 0;                 ///< c of c*tanh(x/c); 0: none
  int64_t sliding_window = 0;         ///< W; 0: none
  Tensor q;                           ///< [Hq][M][d]
  Tensor k;                           ///< [Hkv][N][d]
  Tensor v;                           ///< [Hkv][N][dv]
  Tensor wo;                          ///< [Hq][dv][D]; W* where `path` is not empty
  OutputPath path;                    ///< what else stands between heads and stream
  std::vector<float> residual_norm;   ///< [M] or empty
  std::vector<float> attention_sink;  ///< [Hq] or empty
  std::vector<float> check_output;    ///< [Hq][R][dv] or empty; read for `verify` only
  std::vector<float> check_added;     ///< [R][D] or empty; read for `verify` only
  std::vector<ProbeLayer> probes;     ///< by number; q is empty of those that nobody asked for

  int64_t value_dim() const { return v.dim(2); }
};

/// Rows of the mean query of heads first_head..first_head+heads-1, or of one of them, at stored
/// query indices begin..end-1: [end - begin][d].
Table<float> mean_queries(const LayerTrace& layer, int first_head, int heads, int64_t begin,
                          int64_t end);

/// Facts of a trace as if the tokens of one part of a probe came after its prompt: entries n..
/// are theirs, in their order. A probe without keys sees the prompt alone; all its queries then
/// stand at n-1. `with_prompt`: the stored queries of the prompt, too, else those of the part
/// alone.
TraceInfo probe_info(const TraceInfo& info, int probe, size_t part, bool with_prompt);

/// Does it for a layer whose probe has been read; `info` as above. Elements are shared where no
/// copy is needed; nothing is known of recorded outputs.
LayerTrace probe_layer(const LayerTrace& layer, const TraceInfo& info, int probe, size_t part,
                       bool with_prompt);

/// Both, with the queries of the part alone.
struct ProbeView {
  TraceInfo info;
  LayerTrace layer;
};
std::unique_ptr<ProbeView> probe_view(const LayerTrace& layer, int probe, size_t part);

/// Facts of a trace as if a cache of m entries were its prompt and nothing came after it; its
/// stored queries are those of `newest`, the positions of its last entries.
TraceInfo cache_info(const TraceInfo& info, int64_t entries, Range newest);

/// Does it for a layer, with `entries` [Hkv][m] ascending and `info` as above.
LayerTrace cache_layer(const LayerTrace& layer, const TraceInfo& info,
                       const std::vector<std::vector<uint32_t>>& entries, Range newest);

/// Rotates keys and queries by numbers of positions. Angles are kept: most of many keys turn by as
/// much as the one before.
class RotationMemory {
 public:
  void rotate(const Rotation& rotation, int64_t positions, std::span<float> row) {
    const size_t pairs = rotation.pairs();
    if (&rotation != rotation_ || positions != positions_) {
      rotation_ = &rotation;
      positions_ = positions;
      cosine_.resize(pairs);
      sine_.resize(pairs);
      for (size_t j = 0; j < pairs; ++j) {
        const double angle = static_cast<double>(positions) * rotation.inv_freq[j];
        cosine_[j] = std::cos(angle);
        sine_[j] = std::sin(angle);
      }
    }
    for (size_t j = 0; j < pairs; ++j) {
      float& a = row[rotation.first_of(j)];
      float& b = row[rotation.second_of(j)];
      const double x = a;
      const double y = b;
      a = static_cast<float>(x * cosine_[j] - y * sine_[j]);
      b = static_cast<float>(x * sine_[j] + y * cosine_[j]);
    }
  }

 private:
  const Rotation* rotation_ = nullptr;
  int64_t positions_ = 0;
  std::vector<double> cosine_, sine_;  ///< [r] of `positions_`, or empty
};

/// Puts W* in the place of `layer.wo`, which `layer.path.wo` then holds as it was stored. Nothing
/// happens to a layer whose path is empty. A W* that is not finite is bad data.
void set_usual_output(LayerTrace& layer);

/// Share that a layer adds to the stream [D] by definition, in float64, from its heads' outputs z
/// [Hq][dv] at a stored query. `inner_root`, `outer_root`: where not null, the roots that were
/// divided by.
std::vector<double> added_to_stream(const LayerTrace& layer, int64_t query,
                                    const std::vector<double>& z, double* inner_root = nullptr,
                                    double* outer_root = nullptr);

/// Entries that one policy keeps of one layer's prompt at one budget.
struct KeptSets {
  bool per_query_head = false;                ///< owners are query heads (granularity=query)
  std::vector<std::vector<uint32_t>> owners;  ///< kept prompt entries, ascending, per owner
  std::vector<int64_t> tied;                  ///< tied_at_threshold, per owner
  /// Per owner, ascending: entries kept for their place (sinks, window, recent, whitelist), which
  /// --scope evictable leaves out, and those kept for their deviation (std_keep).
  std::vector<std::vector<uint32_t>> guarded;
  std::vector<std::vector<uint32_t>> spread;
  bool chosen_per_step = false;  ///< oracle-step: a set per step, not this one
  int64_t budget = 0;            ///< B of the record
  std::vector<int64_t> places;   ///< b of each owner; empty: nothing ever leaves
  /// Per owner and kept entry the entries that become one slot with it, ascending; only where the
  /// policy chooses sets instead of entries.
  std::vector<std::vector<std::vector<uint32_t>>> sets;
  /// Per owner, ascending: entries that are part of another's slot; empty before merging.
  std::vector<std::vector<uint32_t>> merged;
  /// Per owner, ascending: kept entries whose slot holds others, too. No other owner has that slot,
  /// whatever it keeps of the same entry; empty before merging.
  std::vector<std::vector<uint32_t>> own;
};

/// Kept sets of one layer: [record][budget].
using LayerKept = std::vector<std::vector<std::shared_ptr<const KeptSets>>>;

/// One slot that two entries became, as it was made: for KeepKV's bound (metrics.md 3).
struct PairMerge {
  int first_head = 0;     ///< query heads that read the slot: first_head ..
  int heads = 1;          ///< .. first_head + heads - 1
  uint32_t from = 0;      ///< entry e that lost its place
  uint32_t into = 0;      ///< entry c whose slot it joined
  int64_t merged_at = 0;  ///< position of the newest query when they were merged
  int64_t last = std::numeric_limits<int64_t>::max();  ///< last query that meets just this pair
  double log_score_from = 0;  ///< ln s^ of the entries when they were merged
  double log_score_into = 0;
  double scale = 1;          ///< f of Eq. 7
  double log_weight = 0;     ///< lambda of the slot
  std::vector<float> key;    ///< [d] of the slot
  std::vector<float> value;  ///< [dv]
};

}  // namespace kvsim
