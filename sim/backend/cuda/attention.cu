// Rows of full-cache attention, and sums over them. Logits of a block of rows are stored on the
// device; what is wanted of their softmax is taken from there. Outputs are a walk over all keys.
#include <numeric>

#include "sim/backend/cuda/finish.hpp"
#include "sim/backend/cuda/rows.hpp"
#include "sim/backend/cuda/scores.hpp"
#include "sim/backend/cuda/verbs.hpp"
#include "sim/backend/cuda/walks.hpp"

namespace kvsim::cuda {
namespace {

/// Softmax of blocks of rows of one KV head.
class RowBlocks {
 public:
  RowBlocks(Context& context, const LayerTrace& trace)
      : context_(context), trace_(trace), layer_(context.store.get(trace, context.compute)) {
    check_shared_memory(context, scores_memory(layer_.type, layer_.depth), trace);
    if (!trace.attention_sink.empty())
      sinks_on_device_ = upload(sinks_, trace.attention_sink, context.compute);
  }

  /// Rows whose logits and attention may be on the device together.
  int64_t most_rows() const {
    const int64_t bytes = 2 * static_cast<int64_t>(sizeof(float)) * trace_.k.dim(1);
    return std::clamp<int64_t>(context_.memory / 8 / bytes, 1, 16384);
  }

  /// Logits and softmax of the rows in `rows`; attention to `columns` keys if that is above 0.
  void run(int kv_head, int64_t columns) {
    table_ = rows.upload(context_.compute);
    const int64_t count = rows.count();
    visible = std::min(rows.end(), trace_.k.dim(1));
    logits.reserve(count * visible);
    for_each_part(context_, layer_, {0, visible}, visible, [&](Range part) {
      Scores scores{};
      scores.rows = table_;
      scores.count = count;
      scores.queries = layer_.queries.data();
      scores.keys = layer_.device_keys.data() +
                    (kv_head * layer_.keys.size() + part.begin - layer_.keys.begin) *
                        layer_.depth * static_cast<int64_t>(element_size(layer_.type));
      scores.first_position = part.begin;
      scores.key_count = part.size();
      scores.depth = static_cast<int>(layer_.depth);
      scores.scale = static_cast<float>(trace_.scale);
      scores.softcap = static_cast<float>(trace_.softcap);
      scores.ld = visible;
      scores.logits = logits.data();
      launch_scores(layer_.type, scores, context_.compute);
    });
    Softmax softmax{};
    softmax.logits = logits.data();
    softmax.rows = count;
    softmax.ld = softmax.visible = visible;
    softmax.head = table_.head;
    softmax.sinks = sinks_on_device_;
    softmax.log_sum_exp = log_sum_exp.reserve(count);
    softmax.maximum = maximum.reserve(count);
    softmax.inverse = inverse.reserve(count);
    softmax.attention = columns > 0 ? attention.reserve(count * columns) : nullptr;
    softmax.columns = columns;
    launch_softmax(softmax, context_.compute);
  }

  /// z[rows][dv] of the same rows.
  void run_outputs(int kv_head, float* z) {
    const int64_t count = rows.count(), dv = trace_.value_dim();
    std::vector<uint32_t> list(static_cast<size_t>(visible));
    std::iota(list.begin(), list.end(), 0u);
    upload(list_, list, context_.compute);
    Walk walk = walk_of(layer_, trace_, table_, count);
    walk.list = list_.data();
    walk.slots = 1;
    walk.sums = sums_.reserve(count * walk_column_blocks(layer_.columns));
    walk.outputs = outputs_.reserve(count * layer_.columns);
    for_each_part(context_, layer_, {0, visible}, visible, [&](Range part) {
      WalkItem item{};
      item.rows = static_cast<int32_t>(count);
      item.kv_head = kv_head;
      item.first_key = part.begin;
      item.keys = static_cast<int32_t>(part.size());
      item.masked = item.outputs = 1;
      item.fresh = part.begin == 0;
      walk.items = upload(items_, std::vector<WalkItem>{item}, context_.compute);
      run_walk(context_, layer_, trace_, walk, 1, count);
    });
    FinishOutputs finish{count, static_cast<int>(dv), walk.columns, walk.sums, walk.outputs,
                         table_.head, sinks_on_device_, z_.reserve(count * dv)};
    launch_finish_outputs(finish, context_.compute);
    download(z, z_.data(), count * dv, context_.compute);
  }

  Rows rows;
  int64_t visible = 0;           ///< positions that any row sees
  DeviceBuffer<float> logits;    ///< [rows][visible]
  DeviceBuffer<float> attention;
  DeviceBuffer<float> maximum;
  DeviceBuffer<double> inverse, log_sum_exp;

 private:
  Context& context_;
  const LayerTrace& trace_;
  DeviceLayer& layer_;
  RowTable table_;
  DeviceBuffer<float> sinks_;
  const float* sinks_on_device_ = nullptr;
  DeviceBuffer<uint32_t> list_;
  DeviceBuffer<WalkItem> items_;
  DeviceBuffer<RowSums> sums_;
  DeviceBuffer<float> outputs_, z_;
};

void prepare(const LayerTrace& layer, const AttentionRequest& request, AttentionBlock& block) {
  block.kv_head = request.kv_head;
  block.heads = layer.info->group_size();
  block.rows = static_cast<int64_t>(request.rows.size());
  block.columns = request.columns;
  block.positions.clear();
  for (const int64_t row : request.rows)
    block.positions.push_back(layer.info->query_position[static_cast<size_t>(row)]);
  const size_t rows = static_cast<size_t>(block.heads * block.rows);
  const size_t cells = rows * static_cast<size_t>(block.columns);
  block.attention.resize(cells);
  block.logits.assign(request.logits ? cells : 0, kMinusInfinity);
  block.log_sum_exp.resize(rows);
  block.outputs.resize(request.outputs ? rows * static_cast<size_t>(layer.value_dim()) : 0);
}

}  // namespace

void attention(Context& context, const LayerTrace& trace, const AttentionRequest& request,
               AttentionBlock& block) {
  prepare(trace, request, block);
  const int64_t all = block.heads * block.rows;
  if (all == 0) return;
  RowBlocks blocks(context, trace);
  const cudaStream_t stream = context.compute;
  const int64_t step = blocks.most_rows();
  for (int64_t first = 0; first < all; first += step) {
    const int64_t count = std::min(step, all - first);
    blocks.rows.clear();
    for (int64_t r = first; r < first + count; ++r)
      blocks.rows.add(trace, request.kv_head * block.heads + r / block.rows,
                      request.rows[static_cast<size_t>(r % block.rows)]);
    blocks.run(request.kv_head, block.columns);
    download(block.attention.data() + first * block.columns, blocks.attention.data(),
             count * block.columns, stream);
    download(block.log_sum_exp.data() + first, blocks.log_sum_exp.data(), count, stream);
    const int64_t stored = std::min(block.columns, blocks.visible);
    for (int64_t r = 0; r < count && request.logits; ++r)
      download(block.logits.data() + (first + r) * block.columns,
               blocks.logits.data() + r * blocks.visible, stored, stream);
    if (request.outputs)
      blocks.run_outputs(request.kv_head, block.outputs.data() + first * trace.value_dim());
    context.compute.wait();
  }
}

void attention_sums(Context& context, const LayerTrace& trace, const AttentionSumRequest& request,
                    double* out) {
  const int64_t all = static_cast<int64_t>(request.rows.size()), columns = request.columns;
  RowBlocks blocks(context, trace);
  DeviceBuffer<double> sums, weights;
  const int64_t group = trace.info->group_size(), step = blocks.most_rows();
  sums.reserve(std::max<int64_t>(columns, 1));
  for (int64_t head = 0; head < trace.info->num_query_heads; ++head) {
    KVSIM_CUDA_CHECK(cudaMemsetAsync(sums.data(), 0, static_cast<size_t>(columns) * sizeof(double),
                                     context.compute));
    for (int64_t first = 0; first < all; first += step) {
      const int64_t count = std::min(step, all - first);
      blocks.rows.clear();
      for (int64_t r = first; r < first + count; ++r)
        blocks.rows.add(trace, head, request.rows[static_cast<size_t>(r)]);
      const auto begin = request.weights.begin() + first;
      upload(weights, std::vector<double>(begin, begin + count), context.compute);
      blocks.run(static_cast<int>(head / group), 0);
      launch_column_sums({blocks.logits.data(), count, blocks.visible,
                          std::min(columns, blocks.visible), blocks.maximum.data(),
                          blocks.inverse.data(), weights.data(), sums.data()},
                         context.compute);
    }
    download(out + head * columns, sums.data(), columns, context.compute);
    context.compute.wait();
  }
}

}  // namespace kvsim::cuda
