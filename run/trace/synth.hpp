#pragma once
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Shape and contents of a synthetic trace.
struct SynthConfig {
  int64_t prompt = 1024;  ///< n
  int64_t steps = 128;    ///< N - n
  int num_layers = 2;
  int heads = 4;           ///< Hq
  int kv_heads = 2;        ///< Hkv
  int64_t head_dim = 64;   ///< d, at least 4
  int64_t value_dim = 64;  ///< dv
  int64_t hidden = 256;    ///< D
  ElementType type = ElementType::float16;
  int64_t query_window = -1;  ///< queries n - window .. N - 1; -1: all
  std::vector<Span> spans = {};
  double softcap = 0;          ///< 0: none
  int64_t sliding_window = 0;  ///< of odd layers; 0: none
  bool sink = false;           ///< a sink logit per head
  int64_t probe_chunk = 0;     ///< a probe "repeat" reads the prompt again in such chunks; 0: none
  uint64_t seed = 0;
};

/// A later step whose query suddenly looks at one prompt entry that nothing looked at before.
struct Spike {
  int64_t step = 0;      ///< position of the query, >= n
  int64_t position = 0;  ///< of the entry, < n
};

/// Structure that is planted, alike in all layers and heads; recorded in the trace's `source`.
struct SynthPlan {
  std::vector<int64_t> heavy_hitters;  ///< ascending; entry 0 is one of them
  std::vector<Spike> spikes;           ///< ascending by step
};
SynthPlan plan_synth(const SynthConfig& config);

/// Position that the hot spot of queries at position p has drifted to: it sweeps the prompt once
/// from its end to its begin during the later steps; before, it is p itself.
double hot_spot(const SynthConfig& config, int64_t position);

/// Writes the trace, layer by layer. Logits at a later step are about: 0 +- 1 for any entry, +4
/// near the hot spot (even query heads) or near the query itself (odd ones), +5 for a heavy hitter
/// (scaled by 0.6 to 1.4 per KV head), and ln N + 6 for the entry of a spike. The same arguments
/// give the same bytes with any number of threads.
void write_synth(const SynthConfig& config, const std::string& path);

}  // namespace kvsim
