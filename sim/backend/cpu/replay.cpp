#include <algorithm>
#include <memory>
#include <vector>

#include "sim/backend/cpu/replay_job.hpp"
#include "sim/backend/cpu/replay_tile.hpp"
#include "sim/backend/cpu/verbs.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

/// Outputs of all blocks of steps in flight together.
constexpr int64_t kFlightBytes = int64_t{48} << 20;

/// Gives a block the sizes of its steps; memory is kept from one use to the next.
void prepare(const ReplayJob& job, int64_t first_step, ReplayBlock& block) {
  const int64_t heads = job.layer.info->num_query_heads;
  const int64_t steps = std::min(job.steps_per_block, job.steps - first_step);
  const size_t outputs = static_cast<size_t>(heads * steps * job.dv);
  block.first_step = first_step;
  const bool fits = block.steps == steps;
  block.steps = steps;
  if (fits) return;
  for (Table<double>* table : {&block.prompt_attention, &block.prompt_importance,
                               &block.later_attention, &block.later_importance})
    *table = Table<double>(heads, steps);
  block.z.resize(outputs);
  const size_t sets = static_cast<size_t>(job.sets);
  block.kept_attention.assign(sets, Table<double>(heads, steps));
  block.kept_importance.assign(sets, Table<double>(heads, steps));
  block.delta.resize(sets);
  for (const PlanWalk& plan : job.plans)
    for (int64_t band = 0; band < plan.bands && !plan.masses_only; ++band)
      block.delta[static_cast<size_t>(plan.first_set + band)].resize(outputs);
}

/// Blocks of steps computed together: enough to give every thread the same number of tiles, as far
/// as memory allows.
int64_t blocks_in_flight(const ReplayJob& job, int64_t tiles_per_block) {
  const int64_t rows = job.layer.info->num_query_heads * job.steps_per_block;
  const int64_t bytes =
      (job.output_sets + 1) * rows * job.dv * static_cast<int64_t>(sizeof(float));
  const int64_t room = std::max<int64_t>(1, kFlightBytes / std::max<int64_t>(bytes, 1));
  const int64_t wanted = std::max<int64_t>(1, (4 * threads() + tiles_per_block - 1) /
                                                  tiles_per_block);
  return std::min(room, wanted);
}

}  // namespace

void cpu_replay(const Kernels& kernels, const LayerTrace& layer, const ReplayRequest& request,
                const std::function<void(const ReplayBlock&)>& sink) {
  const ReplayJob job(kernels, layer, request);
  if (job.steps == 0) return;
  const int64_t parts = (job.group + job.heads_per_tile - 1) / job.heads_per_tile;
  const int64_t tiles = layer.info->num_kv_heads * parts;   // per block
  const int64_t blocks = (job.steps + job.steps_per_block - 1) / job.steps_per_block;
  const int64_t flight = std::min(blocks, blocks_in_flight(job, tiles));

  std::vector<ReplayBlock> ring(static_cast<size_t>(flight));
  std::vector<std::unique_ptr<ReplayTile>> workers(static_cast<size_t>(threads()));
  for (int64_t first = 0; first < blocks; first += flight) {
    const int64_t count = std::min(flight, blocks - first);
    for (int64_t b = 0; b < count; ++b)
      prepare(job, (first + b) * job.steps_per_block, ring[static_cast<size_t>(b)]);
    parallel_for(count * tiles, [&](int64_t i) {
      auto& worker = workers[static_cast<size_t>(thread_index())];
      if (worker == nullptr) worker = std::make_unique<ReplayTile>(job);
      const int64_t tile = i % tiles;
      const int64_t begin = tile % parts * job.heads_per_tile;
      const int64_t heads = std::min(job.heads_per_tile, job.group - begin);
      worker->run(tile / parts * job.group + begin, heads, ring[static_cast<size_t>(i / tiles)]);
    });
    for (int64_t b = 0; b < count; ++b) sink(ring[static_cast<size_t>(b)]);
  }
}

}  // namespace kvsim
