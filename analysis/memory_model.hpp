#pragma once
#include "sim/backend/backend.hpp"
#include "sim/core/layer_trace.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim {

/// Sizes of one layer's cache that memory depends on.
struct CacheShape {
  int kv_heads = 0;
  int group_size = 0;         ///< g
  int64_t head_dim = 0;       ///< d
  int64_t value_dim = 0;      ///< dv
  int64_t prompt_len = 0;     ///< n
  int64_t element_bytes = 2;  ///< e
  int64_t latent_size = 0;    ///< numbers of a token's latent; 0: none that could hold these slots
};

/// Memory of a compressed cache over all layers of the run (metrics.md 9).
struct MemoryUse {
  double entries_kv = 0;
  double entries_query = 0;  ///< NaN unless owners are query heads
  double realised_ratio = 0;
  double realised_ratio_min = 1;
  double realised_ratio_max = 0;
  double bytes_full = 0;  ///< of the cache with all n slots
  double bytes_ragged = 0;
  double bytes_grouped = 0;
  double bytes_quantized = 0;  ///< NaN unless quantised
  double bytes_side = 0;
  // All that is held: entries as they are stored, rounded ones with their scales, and side numbers.
  double bytes_flattened = 0;  ///< heads one behind the other
  double bytes_padded = 0;     ///< every head of a layer as large as the largest
  double bytes_paged = 0;      ///< pages of kPage slots of one head
  double bytes_in_place = 0;   ///< pages of kPage positions of all heads, kept while one holds any
  double bytes_peak = 0;       ///< flattened, the most while the later tokens come
  double bytes_latent = 0;     ///< latents of the positions that some head keeps; NaN without any
  double bytes_latent_full = 0;
  double compression = 0;
  double flops = 0;  ///< of the attention of one decode step
  double flops_full = 0;
};

inline constexpr int64_t kPage = 16;           ///< slots of a page, as vLLM has them
inline constexpr double kPageNumberBytes = 4;  ///< a page's place in its table

/// Growth while later tokens come, beside what is kept of the prompt.
struct Growth {
  int64_t later = 0;                ///< tokens that every head keeps, where nothing else is known
  std::vector<int64_t> most_slots;  ///< per owner, at the worst step; empty: kept slots + `later`
};

/// Adds up layers.
class MemoryModel {
 public:
  /// `quantized`: one per owner of `kept`, or empty when nothing is quantised. `side_bytes`: of the
  /// votes, biases and estimates of one slot.
  void add_layer(const CacheShape& shape, const KeptSets& kept,
                 const std::vector<QuantizedCount>& quantized, double side_bytes = 0,
                 const Growth& growth = {});
  MemoryUse use() const;

 private:
  void add_held(const CacheShape& shape, const KeptSets& kept, const std::vector<int64_t>& stored,
                const std::vector<double>& owner_bytes, double side_bytes, const Growth& growth);

  MemoryUse sum_;
  double heads_times_prompt_ = 0;  ///< sum over layers of Hkv * n
  bool per_query_head_ = false;
  bool quantized_ = false;
};

/// Time in s of the attention of one decode step: the larger of reading `bytes` at `bandwidth`
/// bytes/s and computing `flops` at `peak` flop/s. No weights, launches or scoring.
double roofline_time(double bytes, double flops, double bandwidth, double peak);

/// Adds what a layer's kept sets hold: rounded as the record says, with its votes and estimates.
void add_to_memory(const LayerWork& work, const KeptSets& kept, const Settings& settings,
                   int64_t element_bytes, const Growth& growth, MemoryModel& model);

}  // namespace kvsim
