#include "sim/backend/cpu/replay_job.hpp"
#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {

ChunkedChain::ChunkedChain(const KeptChain& chain, int64_t entries, int64_t chunk)
    : bands_(std::ssize(chain.end)) {
  assert(chunk > 0 && chunk <= kLargestChunk);
  const int64_t kept = chain.end.empty() ? 0 : chain.end.back();
  assert(kept <= std::ssize(chain.order) && kept <= entries);
  // Band of every entry; bands_ for those that no set keeps.
  std::vector<int32_t> band_of(entries, static_cast<int32_t>(bands_));
  int64_t at = 0;
  for (int64_t band = 0; band < bands_; ++band) {
    assert(chain.end[band] >= at);
    for (; at < chain.end[band]; ++at) band_of[chain.order[at]] = static_cast<int32_t>(band);
  }
  keys_.resize(kept);
  std::vector<uint32_t> next(static_cast<size_t>(bands_) + 1);
  uint32_t written = 0;
  for (int64_t first = 0; first < entries; first += chunk) {
    const int64_t last = std::min(entries, first + chunk);
    std::fill(next.begin(), next.end(), 0u);
    for (int64_t i = first; i < last; ++i) {
      const int32_t band = band_of[i];
      ++next[band];
    }
    for (int64_t band = 0; band < bands_; ++band) {  // counts become positions
      const uint32_t count = next[band];
      next[band] = written;
      begin_.push_back(written);
      written += count;
    }
    begin_.push_back(written);
    for (int64_t i = first; i < last; ++i) {
      const int32_t band = band_of[i];
      if (band == bands_) continue;
      keys_[next[band]++] = static_cast<uint16_t>(i - first);
    }
  }
  assert(written == kept && "a chain names an entry twice");
}

namespace {

/// Accumulators of one tile at most, and outputs and sums of one block of steps at most.
constexpr int64_t kTileBytes = int64_t{24} << 20;
constexpr int64_t kBlockBytes = int64_t{32} << 20;
constexpr int64_t kSumBytes = int64_t{8} << 20;

/// Keys per chunk. A prompt that fits into one chunk needs no accumulators but those of one plan at
/// a time. Longer ones go by in chunks whose scores and values (384 + 4 dv bytes per key) stay near
/// the second-level cache, with enough keys per band to make up for loading its accumulator.
int64_t chunk_of(const Shapes& shapes, const ReplayRequest& request, int64_t entries) {
  const int64_t usual = entries <= shapes.one_chunk ? shapes.one_chunk : shapes.chunk;
  return std::min({request.chunk > 0 ? request.chunk : usual, entries, kLargestChunk});
}

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

ReplayJob::ReplayJob(const Kernels& used_kernels, const Shapes& used_shapes,
                     const LayerTrace& used_layer, const ReplayRequest& used_request)
    : kernels(used_kernels), shapes(used_shapes), layer(used_layer),
      operands(used_kernels, used_layer), request(used_request) {
  const TraceInfo& info = *layer.info;
  n = info.prompt_len;
  d = layer.k.dim(2);
  dv = layer.value_dim();
  ldv = padded(dv, kPad);
  group = info.group_size();
  first_query = info.first_step();
  steps = info.steps();
  chunk = chunk_of(shapes, request, n);
  for (const ReplayPlan& plan : request.plans) {
    PlanWalk walk;
    walk.per_query_head = plan.per_query_head;
    walk.masses_only = plan.masses_only;
    walk.bands = plan.boundaries();
    walk.first_set = sets;
    walk.owners.resize(plan.owners.size());
    assert(static_cast<int>(walk.owners.size()) ==
           (plan.per_query_head ? info.num_query_heads : info.num_kv_heads));
    sets += walk.bands;
    if (!walk.masses_only) {
      walk.one_slot = chunk == n;  // plans and bands come one after the other
      walk.first_slot = kSharedSlots + (walk.one_slot ? 0 : slots);
      slots = walk.one_slot ? 1 : slots + walk.bands;
      output_sets += walk.bands;
    }
    plans.push_back(std::move(walk));
  }
  lay_out();

  heads_per_tile = std::min(group, shapes.tile_rows);
  const int64_t floats = static_cast<int64_t>(sizeof(float));
  const int64_t tile_step = (slots + kSharedSlots) * heads_per_tile * ldv * floats;
  const int64_t block_step = (output_sets + 1) * info.num_query_heads * dv * floats;
  steps_per_tile = std::max<int64_t>(std::min({shapes.tile_rows / heads_per_tile,
                                               kTileBytes / tile_step, kBlockBytes / block_step}),
                                     1);
  choose_blocks();
}

void ReplayJob::lay_out() {
  std::vector<std::pair<const KeptChain*, ChunkedChain*>> chains;
  for (size_t p = 0; p < plans.size(); ++p)
    for (size_t o = 0; o < plans[p].owners.size(); ++o)
      chains.emplace_back(&request.plans[p].owners[o], &plans[p].owners[o]);
  parallel_for(std::ssize(chains), [&](int64_t i) {
    const auto& [chain, walked] = chains[i];
    *walked = ChunkedChain(*chain, n, chunk);
  });
}

/// Blocks with the outputs of one tile each, about the same number.
void ReplayJob::choose_blocks() {
  std::vector<int64_t> outputs(request.output_steps ? 0 : steps);
  std::iota(outputs.begin(), outputs.end(), int64_t{0});
  if (request.output_steps) outputs = *request.output_steps;
  const int64_t wanted = std::ssize(outputs);
  const int64_t step_bytes = (sets + kSharedSlots) * layer.info->num_query_heads * 2 *
                             static_cast<int64_t>(sizeof(double));
  const int64_t most = std::max<int64_t>(kSumBytes / step_bytes, steps_per_tile);
  const int64_t count = std::max(
      {(wanted + steps_per_tile - 1) / steps_per_tile, (steps + most - 1) / most, int64_t{1}});
  const int64_t of_block = (wanted + count - 1) / count;
  auto next = outputs.begin();
  for (int64_t begin = 0; begin < steps;) {
    const auto last = next + std::min(of_block, outputs.end() - next);
    const int64_t end = std::min(last == outputs.end() ? steps : *last, begin + most);
    const auto stop = std::lower_bound(next, last, end);
    blocks.push_back({{begin, end}, {next, stop}});
    next = stop;
    begin = end;
  }
}

std::vector<TileRows> ReplayJob::tiles(const StepRange& block) const {
  std::vector<int64_t> rest;
  for (int64_t step = block.steps.begin; step < block.steps.end; ++step)
    if (!std::binary_search(block.outputs.begin(), block.outputs.end(), step)) rest.push_back(step);
  std::vector<TileRows> tiles;
  const auto add = [&](const std::vector<int64_t>& all, int64_t most, bool outputs) {
    const int64_t count = std::ssize(all);
    const int64_t parts = (count + most - 1) / most;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = part * count / parts, end = (part + 1) * count / parts;
      for (int64_t head = 0; head < layer.info->num_query_heads;) {
        const int64_t heads = std::min(heads_per_tile, group - head % group);
        tiles.push_back(
            {head, heads, {all.begin() + begin, all.begin() + end}, outputs ? begin : -1});
        head += heads;
      }
    }
  };
  add(block.outputs, steps_per_tile, true);
  add(rest, shapes.tile_rows / heads_per_tile, false);
  return tiles;
}

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
