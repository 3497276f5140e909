#pragma once
#include "sim/backend/cpu/kernels.hpp"
#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {

/// Keys of a chunk are numbered in 16 bits.
constexpr int64_t kLargestChunk = 65536;

/// A kept chain laid out for a walk in key chunks: the keys of every chunk, sorted by band, and
/// ascending inside a band. Band b holds the entries between boundaries b - 1 and b.
class ChunkedChain {
 public:
  ChunkedChain() = default;
  ChunkedChain(const KeptChain& chain, int64_t entries, int64_t chunk)
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

  int64_t bands() const { return bands_; }
  /// Keys of a band inside a chunk, relative to the chunk's first key.
  std::span<const uint16_t> keys(int64_t chunk, int64_t band) const {
    const size_t at = chunk * (bands_ + 1) + band;
    return {keys_.data() + begin_[at], static_cast<size_t>(begin_[at + 1] - begin_[at])};
  }

  /// Keys of all bands inside a chunk; they follow one another in memory.
  int64_t count(int64_t chunk) const {
    const size_t at = chunk * (bands_ + 1);
    return begin_[at + static_cast<size_t>(bands_)] - begin_[at];
  }

 private:
  int64_t bands_ = 0;
  std::vector<uint16_t> keys_;
  std::vector<uint32_t> begin_;  ///< [chunks][bands + 1]
};

/// Accumulators that all plans of a tile share: prompt and later positions of the full cache.
constexpr int64_t kSharedSlots = 2;

/// A plan, its chains laid out for the walk.
struct PlanWalk {
  bool per_query_head = false;
  bool masses_only = false;
  int64_t bands = 0;
  int64_t first_set = 0;   ///< number of the plan's first set
  int64_t first_slot = 0;  ///< accumulator of band 0
  bool one_slot = false;   ///< all bands add to it, one after the other
  std::vector<ChunkedChain> owners;

  int64_t slots() const { return one_slot ? 1 : bands; }
  int64_t slot(int64_t band) const { return first_slot + (one_slot ? 0 : band); }
};

/// Steps that go by together, and those of them whose outputs are wanted.
struct StepRange {
  Range steps;
  std::vector<int64_t> outputs;  ///< ascending
};

/// The rows of one tile: query heads of one KV head x some steps of a block, ascending.
struct TileRows {
  int64_t first_head = 0;
  int64_t heads = 0;
  std::vector<int64_t> steps;
  int64_t first_output = -1;  ///< number of the first step among the block's outputs; -1: no
                              ///< outputs, sums only
};

/// Accumulators of one tile at most, and outputs and sums of one block of steps at most.
constexpr int64_t kTileBytes = int64_t{24} << 20;
constexpr int64_t kBlockBytes = int64_t{32} << 20;
constexpr int64_t kSumBytes = int64_t{8} << 20;

/// Keys per chunk. A prompt that fits into one chunk needs no accumulators but those of one plan at
/// a time. Longer ones go by in chunks whose scores and values (384 + 4 dv bytes per key) stay near
/// the second-level cache, with enough keys per band to make up for loading its accumulator.
inline int64_t chunk_of(const Shapes& shapes, const ReplayRequest& request, int64_t entries) {
  const int64_t usual = entries <= shapes.one_chunk ? shapes.one_chunk : shapes.chunk;
  return std::min({request.chunk > 0 ? request.chunk : usual, entries, kLargestChunk});
}

/// Everything that the tiles of one replay share. Letters as in the tensors: d, dv head sizes,
/// g query heads per KV head, n prompt entries, T later steps.
struct ReplayJob {
  ReplayJob(const Kernels& used_kernels, const Shapes& used_shapes, const LayerTrace& used_layer,
            const ReplayRequest& used_request)
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

  const Kernels& kernels;
  const Shapes& shapes;
  const LayerTrace& layer;
  ScoreOperands operands;
  const ReplayRequest& request;
  int64_t n = 0;
  int64_t d = 0;
  int64_t dv = 0;
  int64_t ldv = 0;          ///< dv padded to whole vectors
  int64_t group = 0;        ///< g
  int64_t first_query = 0;  ///< index of the first later step among the stored queries
  int64_t steps = 0;        ///< T
  int64_t chunk = 0;        ///< keys per chunk
  int64_t sets = 0;
  int64_t output_sets = 0;     ///< sets whose outputs are wanted
  int64_t slots = 0;           ///< accumulators of a tile, those shared by all plans not counted
  int64_t heads_per_tile = 0;  ///< query heads of a tile, at most g
  int64_t steps_per_tile = 0;
  std::vector<PlanWalk> plans;
  std::vector<StepRange> blocks;  ///< all later steps, in order

  int64_t chunks() const { return (n + chunk - 1) / chunk; }
  int64_t position(int64_t step) const { return layer.info->query_position[first_query + step]; }
  /// The tiles of a block; those with outputs, which take longest, first.
  std::vector<TileRows> tiles(const StepRange& block) const {
    std::vector<int64_t> rest;
    for (int64_t step = block.steps.begin; step < block.steps.end; ++step)
      if (!std::binary_search(block.outputs.begin(), block.outputs.end(), step))
        rest.push_back(step);
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

 private:
  void lay_out() {
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
  void choose_blocks() {
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
};

}  // namespace kvsim
