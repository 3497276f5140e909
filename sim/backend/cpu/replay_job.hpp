#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/backend/cpu/kernels.hpp"
#include "sim/backend/cpu/loader.hpp"
#include "sim/backend/cpu/shapes.hpp"

namespace kvsim {

/// Keys of a chunk are numbered in 16 bits.
constexpr int64_t kLargestChunk = 65536;

/// A kept chain laid out for a walk in key chunks: the keys of every chunk, sorted by band, and
/// ascending inside a band. Band b holds the entries between boundaries b - 1 and b.
class ChunkedChain {
 public:
  ChunkedChain() = default;
  ChunkedChain(const KeptChain& chain, int64_t entries, int64_t chunk);

  int64_t bands() const { return bands_; }
  /// Keys of a band inside a chunk, relative to the chunk's first key.
  std::span<const uint16_t> keys(int64_t chunk, int64_t band) const {
    const size_t at = static_cast<size_t>(chunk * (bands_ + 1) + band);
    return {keys_.data() + begin_[at], static_cast<size_t>(begin_[at + 1] - begin_[at])};
  }

  /// Keys of all bands inside a chunk; they follow one another in memory.
  int64_t count(int64_t chunk) const {
    const size_t at = static_cast<size_t>(chunk * (bands_ + 1));
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

/// Everything that the tiles of one replay share. Letters as in the tensors: d, dv head sizes,
/// g query heads per KV head, n prompt entries, T later steps.
struct ReplayJob {
  ReplayJob(const Kernels& kernels, const Shapes& shapes, const LayerTrace& layer,
            const ReplayRequest& request);

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
  int64_t position(int64_t step) const {
    return layer.info->query_position[static_cast<size_t>(first_query + step)];
  }
  double sink_logit(int64_t head) const;  ///< -infinity without a sink
  /// The tiles of a block; those with outputs, which take longest, first.
  std::vector<TileRows> tiles(const StepRange& block) const;

 private:
  void lay_out();
  void choose_blocks();
};

}  // namespace kvsim
