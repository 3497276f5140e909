#include "sim/backend/cpu/replay_job.hpp"

#include <algorithm>
#include <cassert>
#include <limits>

#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

/// Accumulators of one tile at most, and outputs of one block of steps at most.
constexpr int64_t kTileBytes = int64_t{24} << 20;
constexpr int64_t kBlockBytes = int64_t{32} << 20;

/// Keys per chunk. A prompt that fits into one chunk needs no accumulators but those of one plan at
/// a time. Longer ones go by in chunks whose scores and values (384 + 4 dv bytes per key) stay near
/// the second-level cache, with enough keys per band to make up for loading its accumulator.
constexpr int64_t kOneChunk = 4096;
constexpr int64_t kUsualChunk = 2048;

int64_t chunk_of(const ReplayRequest& request, int64_t entries) {
  const int64_t usual = entries <= kOneChunk ? kOneChunk : kUsualChunk;
  return std::min({request.chunk > 0 ? request.chunk : usual, entries, kLargestChunk});
}

std::vector<ChunkedChain> lay_out(const ReplayPlan& plan, int64_t entries, int64_t chunk) {
  std::vector<std::unique_ptr<ChunkedChain>> made(plan.owners.size());
  parallel_for(static_cast<int64_t>(made.size()), [&](int64_t i) {
    const size_t at = static_cast<size_t>(i);
    made[at] = std::make_unique<ChunkedChain>(plan.owners[at], entries, chunk);
  });
  std::vector<ChunkedChain> chains;
  for (auto& chain : made) chains.push_back(std::move(*chain));
  return chains;
}

}  // namespace

ReplayJob::ReplayJob(const Kernels& used_kernels, const LayerTrace& used_layer,
                     const ReplayRequest& used_request)
    : kernels(used_kernels), layer(used_layer), request(used_request) {
  const TraceInfo& info = *layer.info;
  n = info.prompt_len;
  d = layer.k.dim(2);
  dv = layer.value_dim();
  ldv = padded(dv, kPad);
  group = info.group_size();
  first_query = info.first_step();
  steps = info.steps();
  chunk = chunk_of(request, n);
  for (const ReplayPlan& plan : request.plans) {
    PlanWalk walk;
    walk.per_query_head = plan.per_query_head;
    walk.masses_only = plan.masses_only;
    walk.bands = plan.boundaries();
    walk.first_set = sets;
    walk.owners = lay_out(plan, n, chunk);
    assert(static_cast<int>(walk.owners.size()) ==
           (plan.per_query_head ? info.num_query_heads : info.num_kv_heads));
    sets += walk.bands;
    if (!walk.masses_only) {
      const bool one_chunk = chunk == n;   // plans come one after the other
      walk.first_slot = kSharedSlots + (one_chunk ? 0 : slots);
      slots = one_chunk ? std::max(slots, walk.bands) : slots + walk.bands;
      output_sets += walk.bands;
    }
    plans.push_back(std::move(walk));
  }

  heads_per_tile = std::min(group, kTileRows);
  const int64_t floats = static_cast<int64_t>(sizeof(float));
  const int64_t tile_step = (slots + kSharedSlots) * heads_per_tile * ldv * floats;
  const int64_t block_step = (output_sets + 1) * info.num_query_heads * dv * floats;
  const int64_t most = std::min({kTileRows / heads_per_tile, kTileBytes / tile_step,
                                 kBlockBytes / block_step, std::max<int64_t>(steps, 1)});
  // Blocks of about the same height.
  steps_per_block = std::max<int64_t>(most, 1);
  const int64_t blocks = (steps + steps_per_block - 1) / steps_per_block;
  if (blocks > 0) steps_per_block = (steps + blocks - 1) / blocks;
}

double ReplayJob::sink_logit(int64_t head) const {
  if (layer.attention_sink.empty()) return -std::numeric_limits<double>::infinity();
  return static_cast<double>(layer.attention_sink[static_cast<size_t>(head)]);
}

}  // namespace kvsim
