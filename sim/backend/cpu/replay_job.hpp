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
  ChunkedChain(const KeptChain& chain, int64_t entries, int64_t chunk);

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
  int64_t position(int64_t step) const { return layer.info->query_position[first_query + step]; }
  /// The tiles of a block; those with outputs, which take longest, first.
  std::vector<TileRows> tiles(const StepRange& block) const;

 private:
  void lay_out();
  void choose_blocks();
};

/// The fused walk over one tile: some query heads of one KV head x some steps. Rows are head-major,
/// so that the rows of each head are contiguous. One object per thread.
///
/// Later positions, which every set keeps, come first; then prompt keys in chunks. Scores of a
/// chunk are key-major (one contiguous line of tile rows per key); the exponential is taken once
/// for all plans; each plan then walks its keys of the chunk band by band, into one accumulator per
/// band. Sums over bands at the end give every kept set. The shift under the exponential is the
/// row's maximum when it was last raised: it is raised, and everything so far scaled down, only
/// when a score exceeds it by more than kSlack.
class ReplayTile {
 public:
  ReplayTile(const ReplayJob& job, TileMemory& memory) : job_(job), memory_(memory) {}

  /// Fills `rows` of `block`, whose steps are set and whose tables have their sizes.
  void run(const TileRows& rows, ReplayBlock& block);

 private:
  // Accumulators and sums: those shared by all plans come first.
  static constexpr int64_t kPrompt = 0;
  static constexpr int64_t kLater = 1;
  static constexpr int64_t kShared = kSharedSlots;

  void start(const TileRows& rows, const ReplayBlock& block);
  void score(int64_t first_key, int64_t keys, const int32_t* last_visible);
  void raise_shift();
  void add_all(int64_t slot, int64_t first_key, int64_t keys);
  const TileWeights* load_weights(int64_t first_key, int64_t keys);
  void walk_prompt(ReplayBlock& block);
  void walk_plan(size_t plan, int64_t chunk, const TileWeights* weights, ReplayBlock& block);
  void walk_later();
  void add_product(int64_t slot, int64_t part, int64_t first_row, const ProductTask& task);
  void finish_full(ReplayBlock& block);
  void emit_full(const std::vector<float>& inverse, ReplayBlock& block);
  void finish_band(const PlanWalk& plan, const ReplayPlan& request, int64_t band, Range rows,
                   const float*& running, ReplayBlock& block);
  void finish_masses(const PlanWalk& plan, const ReplayPlan& request, int64_t band, int64_t head,
                     ReplayBlock& block);
  void finish_output(const PlanWalk& plan, const ReplayPlan& request, int64_t band, int64_t head,
                     const float* previous, float* current, ReplayBlock& block);
  void redo(const PlanWalk& plan, const ReplayPlan& request, int64_t band, int64_t row,
            ReplayBlock& block) const;

  /// Whether an accumulator holds anything: a first product overwrites what an earlier tile left.
  /// Plans per query head have one part per head in it, the others part 0 only.
  uint8_t& used(int64_t slot, int64_t part) { return used_[slot * heads_ + part]; }
  float* accumulator(int64_t slot) { return memory_.accumulators.data() + slot * slot_size_; }
  double* mass(int64_t set) { return masses_.data() + set * ld_; }
  double* importance(int64_t set) { return importances_.data() + set * ld_; }
  int64_t head_of(int64_t row) const { return row / steps_; }
  int64_t step_of(int64_t row) const { return step_[row % steps_]; }
  /// Column of the block's tables.
  int64_t column_of(int64_t row) const { return step_of(row) - first_step_; }
  /// Where the outputs of a head's first step are among those of the block.
  int64_t output_of(int64_t head) const {
    return ((first_head_ + head) * outputs_ + first_output_) * job_.dv;
  }
  bool has_outputs() const { return first_output_ >= 0; }
  const KeptChain& chain(const PlanWalk& plan, const ReplayPlan& request, int64_t head) const {
    const int64_t query_head = first_head_ + head;
    return request.owners[plan.per_query_head ? query_head : query_head / job_.group];
  }
  /// First accumulator row of a head: plans per query head pad each head's rows for themselves.
  int64_t accumulator_row(bool per_query_head, int64_t head) const {
    return head * (per_query_head ? padded(steps_, kRowStep) : steps_);
  }

  const ReplayJob& job_;
  int64_t first_head_ = 0;
  int64_t heads_ = 0;
  int64_t kv_head_ = 0;
  std::vector<int64_t> step_;  ///< of the tile, ascending
  int64_t steps_ = 0;          ///< how many
  int64_t first_step_ = 0;     ///< of the block
  int64_t outputs_ = 0;        ///< of the block
  int64_t first_output_ = -1;  ///< of the tile among them; -1: sums only
  int64_t rows_ = 0;           ///< heads * steps
  int64_t ld_ = 0;             ///< rows padded to whole groups and vectors
  int64_t slot_size_ = 0;      ///< floats of one accumulator
  bool first_chunk_ = true;

  TileMemory& memory_;
  std::vector<uint8_t> used_;        ///< [kShared + slots][heads]
  std::vector<double> masses_;       ///< [sets + 2][ld]: prompt, later, then the sets' bands
  std::vector<double> importances_;  ///< likewise
  std::vector<float> shift_;         ///< [ld]
  std::vector<float> maximum_;       ///< [ld] of the chunk
  std::vector<double> inverse_;      ///< [ld] 1 / all of the softmax, sink included
  std::vector<double> sink_;         ///< [ld]
  std::vector<int32_t> head_;        ///< [ld] column of the weights
  ProductTask values_{};             ///< a product whose values are those of the chunk
  TileWeights weights_{};
};

}  // namespace kvsim
