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

void set_size(Table<double>& table, int64_t rows, int64_t columns) {
  if (table.rows() != rows || table.columns() != columns) table = Table<double>(rows, columns);
}

/// Gives a block the sizes of its steps.
void prepare(const ReplayJob& job, int64_t first_step, ReplayBlock& block,
             std::vector<std::vector<float>>& outputs_of_sets) {
  const int64_t heads = job.layer.info->num_query_heads;
  const int64_t steps = std::min(job.steps_per_block, job.steps - first_step);
  const size_t outputs = static_cast<size_t>(heads * steps * job.dv);
  block.first_step = first_step;
  block.steps = steps;
  for (Table<double>* table : {&block.prompt_attention, &block.prompt_importance,
                               &block.later_attention, &block.later_importance})
    set_size(*table, heads, steps);
  block.z.resize(outputs);
  for (auto* tables : {&block.kept_attention, &block.kept_importance}) {
    tables->resize(static_cast<size_t>(job.sets));
    for (Table<double>& table : *tables) set_size(table, heads, steps);
  }
  block.delta.assign(static_cast<size_t>(job.sets), nullptr);
  outputs_of_sets.resize(static_cast<size_t>(job.sets));
  for (const PlanWalk& plan : job.plans)
    for (int64_t band = 0; band < plan.bands && !plan.masses_only; ++band) {
      const auto set = static_cast<size_t>(plan.first_set + band);
      outputs_of_sets[set].resize(outputs);
      block.delta[set] = outputs_of_sets[set].data();
    }
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
                const std::function<void(const ReplayBlock&)>& sink, ReplayMemory& memory) {
  const ReplayJob job(kernels, layer, request);
  if (job.steps == 0) return;
  const int64_t parts = (job.group + job.heads_per_tile - 1) / job.heads_per_tile;
  const int64_t tiles = layer.info->num_kv_heads * parts;   // per block
  const int64_t blocks = (job.steps + job.steps_per_block - 1) / job.steps_per_block;
  const int64_t flight = std::min(blocks, blocks_in_flight(job, tiles));

  memory.blocks.resize(static_cast<size_t>(flight));
  memory.outputs.resize(memory.blocks.size());
  memory.tiles.resize(static_cast<size_t>(threads()));
  std::vector<std::unique_ptr<ReplayTile>> workers(memory.tiles.size());
  for (int64_t first = 0; first < blocks; first += flight) {
    const int64_t count = std::min(flight, blocks - first);
    for (int64_t b = 0; b < count; ++b)
      prepare(job, (first + b) * job.steps_per_block, memory.blocks[static_cast<size_t>(b)],
              memory.outputs[static_cast<size_t>(b)]);
    parallel_for(count * tiles, [&](int64_t i) {
      const size_t thread = static_cast<size_t>(thread_index());
      auto& worker = workers[thread];
      if (worker == nullptr) worker = std::make_unique<ReplayTile>(job, memory.tiles[thread]);
      const int64_t tile = i % tiles;
      const int64_t begin = tile % parts * job.heads_per_tile;
      const int64_t heads = std::min(job.heads_per_tile, job.group - begin);
      worker->run(tile / parts * job.group + begin, heads,
                  memory.blocks[static_cast<size_t>(i / tiles)]);
    });
    for (int64_t b = 0; b < count; ++b) sink(memory.blocks[static_cast<size_t>(b)]);
  }
}

}  // namespace kvsim
