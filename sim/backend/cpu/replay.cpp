#include "sim/backend/cpu/replay_tile.hpp"
#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {
namespace {

/// Outputs and sums of the blocks of steps in flight together, for each thread; and what of the
/// outputs' memory is kept for the next layer: more is worth less than what else would go there.
constexpr int64_t kFlightBytes = int64_t{24} << 20;
constexpr int64_t kKeptBytes = int64_t{16} << 20;

void set_size(Table<double>& table, int64_t rows, int64_t columns) {
  if (table.rows() != rows || table.columns() != columns) table = Table<double>(rows, columns);
}

/// Gives a block the sizes of its steps.
void prepare(const ReplayJob& job, const StepRange& range, ReplayBlock& block,
             Scratch<float>& outputs_of_sets) {
  const int64_t heads = job.layer.info->num_query_heads, steps = range.steps.size();
  const size_t outputs = static_cast<size_t>(heads * job.dv) * range.outputs.size();
  block.first_step = range.steps.begin;
  block.steps = steps;
  block.output_steps = range.outputs;
  for (Table<double>* table : {&block.prompt_attention, &block.prompt_importance,
                               &block.later_attention, &block.later_importance})
    set_size(*table, heads, steps);
  block.z.resize(outputs);
  for (auto* tables : {&block.kept_attention, &block.kept_importance}) {
    tables->resize(job.sets);
    for (Table<double>& table : *tables) set_size(table, heads, steps);
  }
  block.delta.assign(job.sets, nullptr);
  const int64_t set_size = padded(static_cast<int64_t>(outputs), kPad) + kPad;
  float* next = outputs_of_sets.reserve(job.output_sets * set_size);
  for (const PlanWalk& plan : job.plans)
    for (int64_t band = 0; band < plan.bands && !plan.masses_only; ++band) {
      block.delta[plan.first_set + band] = next;
      next += set_size;
    }
}

/// Blocks of steps computed together: enough to give every thread about the same number of tiles,
/// as far as memory allows.
int64_t blocks_in_flight(const ReplayJob& job) {
  const StepRange& block = job.blocks.front();
  const int64_t heads = job.layer.info->num_query_heads;
  const int64_t bytes = heads *
                        ((job.output_sets + 1) * std::ssize(block.outputs) * job.dv *
                             static_cast<int64_t>(sizeof(float)) +
                         job.sets * block.steps.size() * 2 * static_cast<int64_t>(sizeof(double)));
  if (threads() == 1) return 1;
  const int64_t room = std::max<int64_t>(1, kFlightBytes * threads() / std::max<int64_t>(bytes, 1));
  const int64_t tiles = std::ssize(job.tiles(block));
  const int64_t wanted = std::max<int64_t>(1, (4 * threads() + tiles - 1) / tiles);
  return std::min({room, wanted, std::ssize(job.blocks)});
}

/// Gives back the memory of outputs that is not kept for the next layer.
void trim(std::vector<Scratch<float>>& outputs) {
  int64_t bytes = 0;
  for (Scratch<float>& of_block : outputs) {
    bytes += of_block.size() * static_cast<int64_t>(sizeof(float));
    if (bytes > kKeptBytes * threads()) of_block = {};
  }
}

}  // namespace

void CpuBackend::replay(const LayerTrace& layer, const ReplayRequest& request,
                        const std::function<void(const ReplayBlock&)>& sink) {
  ReplayMemory& memory = replay_memory_;
  const ReplayJob job(kernels_, shapes_, layer, request);
  if (job.steps == 0) return;
  const int64_t blocks = std::ssize(job.blocks);
  const int64_t flight = blocks_in_flight(job);

  memory.blocks.resize(flight);
  memory.outputs.resize(memory.blocks.size());
  memory.tiles.resize(threads());
  std::vector<std::unique_ptr<ReplayTile>> workers(memory.tiles.size());
  for (int64_t first = 0; first < blocks; first += flight) {
    const int64_t count = std::min(flight, blocks - first);
    std::vector<std::pair<TileRows, ReplayBlock*>> tiles;
    for (int64_t b = 0; b < count; ++b) {
      const StepRange& range = job.blocks[first + b];
      ReplayBlock& block = memory.blocks[b];
      prepare(job, range, block, memory.outputs[b]);
      for (TileRows& rows : job.tiles(range)) tiles.emplace_back(std::move(rows), &block);
    }
    parallel_for(std::ssize(tiles), [&](int64_t i) {
      const size_t thread = thread_index();
      auto& worker = workers[thread];
      if (worker == nullptr) worker = std::make_unique<ReplayTile>(job, memory.tiles[thread]);
      const auto& [rows, block] = tiles[i];
      worker->run(rows, *block);
    });
    for (int64_t b = 0; b < count; ++b) sink(memory.blocks[b]);
  }
  trim(memory.outputs);
}

}  // namespace kvsim
