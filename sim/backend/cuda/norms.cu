// Norms of values, alone and after the output projection.
#include <cmath>

#include "sim/backend/cuda/elements.hpp"
#include "sim/backend/cuda/row_norms.hpp"
#include "sim/backend/cuda/verbs.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim::cuda {
namespace {

constexpr int64_t kMostEntries = int64_t{1} << 20;   // whose norms are on the device at a time

// One warp per row of values; lanes take every 32nd column and meet in a fixed order. Memory sets
// the time: each value is read once, in one piece.
template <class Type>
__global__ void value_row_norms(const Widening<Type>* values, int64_t rows, int64_t head_rows,
                                int columns, bool squares, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const Widening<Type>* const v = values + (blockIdx.y * head_rows + row) * columns;
  float sum = 0;
  for (int c = lane; c < columns && row < rows; c += 32) {
    const float x = v[c].widened();
    sum += squares ? x * x : fabsf(x);
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (lane == 0 && row < rows) out[blockIdx.y * rows + row] = squares ? sqrtf(sum) : sum;
}

const std::byte* first_value(const DeviceLayer& layer, Range part) {
  return layer.device_values.data() + (part.begin - layer.keys.begin) * layer.columns *
                                          static_cast<int64_t>(element_size(layer.type));
}

}  // namespace

void value_norms(Context& context, const LayerTrace& trace, Norm norm, Range entries, float* out) {
  DeviceLayer& layer = context.store.get(trace, context.compute);
  const int64_t heads = trace.k.dim(0);
  DeviceBuffer<float> norms;
  std::vector<float> part_out;
  for_each_part(context, layer, entries, kMostEntries, [&](Range part) {
    norms.reserve(heads * part.size());
    with_types<Bfloat16, Float16, Float32>(layer.type, [&](auto type) {
      using Type = decltype(type);
      launch(value_row_norms<Type>,
             dim3(static_cast<unsigned>((part.size() + 7) / 8), static_cast<unsigned>(heads)), 256,
             0, context.compute, reinterpret_cast<const Widening<Type>*>(first_value(layer, part)),
             part.size(), layer.keys.size(), static_cast<int>(layer.columns), norm == Norm::l2,
             norms.data());
    });
    part_out.resize(static_cast<size_t>(heads * part.size()));
    download(part_out.data(), norms.data(), heads * part.size(), context.compute);
    context.compute.wait();
    for (int64_t h = 0; h < heads; ++h)
      std::copy_n(part_out.data() + h * part.size(), part.size(),
                  out + h * entries.size() + part.begin - entries.begin);
  });
}

void projected_norms(Context& context, const LayerTrace& trace, Norm norm, Range entries,
                     float* out) {
  DeviceLayer& layer = context.store.get(trace, context.compute);
  const int64_t heads = trace.q.dim(0);
  const bool squares = norm == Norm::l2;
  DeviceBuffer<float> factors;
  if (squares) output_factors(context, layer, factors);
  DeviceBuffer<double> sums;
  std::vector<double> part_sums;
  for_each_part(context, layer, entries, kMostEntries, [&](Range part) {
    sums.reserve(heads * part.size());
    RowNorms task{};
    task.x = first_value(layer, part);
    task.x_slice = layer.keys.size() * layer.columns;
    task.x_row = layer.columns;
    task.rows = part.size();
    task.group = static_cast<int>(heads / trace.k.dim(0));
    task.x_columns = task.depth = static_cast<int>(layer.columns);
    task.b = squares ? static_cast<const void*>(factors.data()) : layer.output.data();
    task.width = static_cast<int>(squares ? layer.columns : layer.width);
    task.squares = squares;
    task.out = sums.data();
    with_types<Bfloat16, Float16, Float32>(layer.type, [&](auto type) {
      using Type = decltype(type);
      using Matrix = Float32;
      check_shared_memory(context, std::max(row_norms_memory<Matrix>(task.depth),
                                            row_norms_memory<Type>(task.depth)), trace);
      if (!squares)
        launch_row_norms<Type, typename Type::Element>(task, heads, context.compute);
      else if constexpr (std::is_same_v<Type, Float32>)
        launch_row_norms<Float32, float>(task, heads, context.compute);
      else
        launch_row_norms<Float32, Widening<Type>>(task, heads, context.compute);
    });
    part_sums.resize(static_cast<size_t>(heads * part.size()));
    download(part_sums.data(), sums.data(), heads * part.size(), context.compute);
    context.compute.wait();
    parallel_for(heads, [&](int64_t h) {
      for (int64_t i = 0; i < part.size(); ++i) {
        const double sum = part_sums[static_cast<size_t>(h * part.size() + i)];
        out[h * entries.size() + part.begin - entries.begin + i] =
            static_cast<float>(squares ? std::sqrt(sum) : sum);
      }
    });
  });
}

}  // namespace kvsim::cuda
