// Rows of full-cache attention, and sums over them. Logits of a block of rows are stored on the
// device; what is wanted of their softmax is taken from there. Outputs are a walk over all keys.

#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda/scores.hpp"
#include "sim/backend/cuda/walk.hpp"

namespace kvsim::cuda {
namespace {

/// Pieces that the keys of a walk are cut into, so that few rows over many keys also keep the whole
/// device at work: about 256 blocks of threads, each with a tile of keys at least.
int64_t walk_pieces(int64_t rows, int64_t keys) {
  constexpr int64_t kBlocks = 256, kRowsOfBlock = 128, kLeastKeys = 64;
  const int64_t blocks = (rows + kRowsOfBlock - 1) / kRowsOfBlock;
  return std::clamp<int64_t>(std::min(kBlocks / blocks, keys / kLeastKeys), 1, kBlocks);
}

/// Softmax of blocks of rows of one KV head.
class RowBlocks {
 public:
  RowBlocks(Context& context, const LayerTrace& trace)
      : memory(context.rows), context_(context), trace_(trace),
        layer_(context.store.get(trace, context.compute)) {
    memory.rows.clear();
    check_shared_memory(context, scores_memory(layer_.type, layer_.depth), trace);
    if (!trace.attention_sink.empty())
      sinks_on_device_ = upload(memory.sinks, trace.attention_sink, context.compute);
  }

  /// Rows whose logits and attention may be on the device together.
  int64_t most_rows() const { return rows_together(context_.memory, trace_.k.dim(1)); }

  /// Logits and softmax of `memory.rows`; attention to `columns` keys if that is above 0.
  void run(int kv_head, int64_t columns) {
    table_ = memory.rows.upload(context_.compute);
    const int64_t count = memory.rows.count();
    visible = std::min(memory.rows.end(), trace_.k.dim(1));
    memory.logits.reserve(count * visible);
    for_each_part(context_, layer_, {0, visible}, visible, [&](Range part) {
      Scores scores{};
      scores.rows = table_;
      scores.count = count;
      scores.queries = layer_.queries.data();
      scores.keys = layer_.device_keys.data() +
                    (kv_head * layer_.keys.size() + part.begin - layer_.keys.begin) * layer_.depth *
                        static_cast<int64_t>(element_size(layer_.type));
      scores.first_position = part.begin;
      scores.key_count = part.size();
      scores.depth = static_cast<int>(layer_.depth);
      scores.scale = static_cast<float>(trace_.scale);
      scores.softcap = static_cast<float>(trace_.softcap);
      scores.ld = visible;
      scores.logits = memory.logits.data();
      launch_scores(layer_.type, scores, context_.compute);
    });
    run_softmax(memory, {count, visible, table_.head, sinks_on_device_, columns}, context_.compute);
  }

  /// z[rows][dv] of the same rows.
  void run_outputs(int kv_head, float* z) {
    const int64_t count = memory.rows.count(), dv = trace_.value_dim();
    if (memory.list.size() < visible) {
      std::vector<uint32_t> list(visible);
      std::iota(list.begin(), list.end(), 0u);
      upload(memory.list, list, context_.compute);
    }
    Walk walk = walk_of(layer_, trace_, table_, count);
    walk.list = memory.list.data();
    walk.slots = walk_pieces(count, visible);
    walk.sums = memory.states.reserve(walk.slots * count * walk_column_blocks(layer_.columns));
    walk.outputs = memory.outputs.reserve(walk.slots * count * layer_.columns);
    for_each_part(context_, layer_, {0, visible}, visible, [&](Range part) {
      std::vector<WalkItem> items;
      for (int64_t slot = 0; slot < walk.slots; ++slot) {
        const int64_t begin = part.begin + part.size() * slot / walk.slots;
        const int64_t end = part.begin + part.size() * (slot + 1) / walk.slots;
        items.push_back({.rows = static_cast<int32_t>(count),
                         .kv_head = kv_head,
                         .slot = static_cast<int32_t>(slot),
                         .first_key = begin,
                         .keys = static_cast<int32_t>(end - begin),
                         .masked = 1,
                         .fresh = part.begin == 0,
                         .outputs = 1});
      }
      walk.items = upload(memory.items, items, context_.compute);
      run_walk(context_, layer_, trace_, walk, walk.slots, count);
    });
    FinishOutputs finish{count,
                         static_cast<int>(walk.slots),
                         static_cast<int>(dv),
                         walk.columns,
                         walk.sums,
                         walk.outputs,
                         table_.head,
                         sinks_on_device_,
                         memory.z.reserve(count * dv)};
    launch_finish_outputs(finish, context_.compute);
    download(z, memory.z.data(), count * dv, context_.compute);
  }

  RowMemory& memory;
  int64_t visible = 0;  ///< positions that any row sees

 private:
  Context& context_;
  const LayerTrace& trace_;
  DeviceLayer& layer_;
  RowTable table_;
  const float* sinks_on_device_ = nullptr;
};

}  // namespace

void CudaBackend::attention(const LayerTrace& trace, const AttentionRequest& request,
                            AttentionBlock& block) {
  const std::lock_guard lock(context_.verb);
  block.shape(trace, request);
  const int64_t all = block.heads * block.rows;
  if (all == 0) return;
  RowBlocks blocks(context_, trace);
  RowMemory& memory = blocks.memory;
  const Stream& stream = context_.compute;
  const int64_t step = blocks.most_rows();
  for (int64_t first = 0; first < all; first += step) {
    const int64_t count = std::min(step, all - first);
    memory.rows.clear();
    for (int64_t r = first; r < first + count; ++r)
      memory.rows.add(trace, request.kv_head * block.heads + r / block.rows,
                      request.rows[r % block.rows]);
    blocks.run(request.kv_head, block.columns);
    if (request.outputs)
      blocks.run_outputs(request.kv_head, block.outputs.data() + first * trace.value_dim());
    download(block.log_sum_exp.data() + first, memory.log_sum_exp.data(), count, stream);
    context_.downloads.bring(block.attention.data() + first * block.columns,
                             memory.attention.data(), count * block.columns, stream);
    const int64_t stored = std::min(block.columns, blocks.visible);
    for (int64_t r = 0; r < count && request.logits; ++r) {
      float* const row = block.logits.data() + (first + r) * block.columns;
      context_.downloads.bring(row, memory.logits.data() + r * blocks.visible, stored, stream);
      std::fill(row + stored, row + block.columns, kMinusInfinity);
    }
    context_.compute.wait();
  }
}

std::vector<Table<double>> CudaBackend::attention_sums(const LayerTrace& trace,
                                                       const AttentionSumRequest& request) {
  const std::lock_guard lock(context_.verb);
  const int64_t all = std::ssize(request.rows), columns = request.columns;
  const int64_t group = trace.info->group_size();  // heads worked on together
  RowBlocks blocks(context_, trace);
  RowMemory& memory = blocks.memory;
  const Stream& stream = context_.compute;
  const int64_t step = std::max<int64_t>(1, blocks.most_rows() / group);
  std::vector<Table<double>> out;
  std::vector<double> weights, bounds;  // [sums][rows]
  for (const AttentionSum& sum : request.sums) {
    out.emplace_back(sum.of_groups() ? trace.info->num_kv_heads : trace.info->num_query_heads,
                     columns);
    weights.insert(weights.end(), sum.weights.begin(), sum.weights.end());
    bounds.insert(bounds.end(), sum.bounds.begin(), sum.bounds.end());
    bounds.resize(weights.size());
  }
  upload(memory.weights, weights, stream);
  upload(memory.bounds, bounds, stream);
  const int64_t tables = std::ssize(out);
  const int64_t size = tables * group * columns;  // a table of groups leaves room unused
  double* const sums = memory.sums.reserve(std::max<int64_t>(size, 1));
  for (int64_t kv_head = 0; kv_head < trace.info->num_kv_heads; ++kv_head) {
    KVSIM_CUDA_CHECK(cudaMemsetAsync(sums, 0, static_cast<size_t>(size) * sizeof(double), stream));
    for (int64_t first = 0; first < all; first += step) {
      const int64_t count = std::min(step, all - first);
      memory.rows.clear();
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (int64_t r = first; r < first + count; ++r)
          memory.rows.add(trace, head, request.rows[r]);
      blocks.run(static_cast<int>(kv_head), 0);
      for (int64_t s = 0; s < tables; ++s) {
        const AttentionSum& sum = request.sums[s];
        const int64_t together = sum.of_groups() ? group : 1;
        for (int64_t x = 0; x < group; x += together)
          launch_column_sums(
              {sum.of, memory.logits.data() + x * count * blocks.visible, count, blocks.visible,
               std::min(columns, blocks.visible), static_cast<int>(together),
               memory.maximum.data() + x * count, memory.inverse.data() + x * count,
               memory.weights.data() + s * all + first, memory.bounds.data() + s * all + first,
               sums + (s * group + x) * columns},
              stream);
      }
    }
    for (int64_t s = 0; s < tables; ++s) {
      const int64_t rows = request.sums[s].of_groups() ? 1 : group;
      context_.downloads.bring(out[s].data() + kv_head * rows * columns, sums + s * group * columns,
                               rows * columns, stream);
    }
  }
  return out;
}

}  // namespace kvsim::cuda
