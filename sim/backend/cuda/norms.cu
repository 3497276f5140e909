// Norms of values, alone and after the output projection.
#include "sim/backend/cuda/elements.hpp"
#include "sim/backend/cuda/row_norms.hpp"
#include "sim/backend/cuda/verbs.hpp"

namespace kvsim::cuda {
namespace {

constexpr int64_t kMostEntries = int64_t{1} << 20;  // whose norms are on the device at a time

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

// out[i] = sums[i], or its root where sums are of squares. Memory sets the time.
__global__ void narrow_sums(const double* sums, int64_t count, bool squares, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < count) out[i] = static_cast<float>(squares ? sqrt(sums[i]) : sums[i]);
}

/// Norms [heads][part] on the device to their place among [heads][entries].
void bring_norms(Context& context, const float* norms, int64_t heads, Range part, Range entries,
                 float* out) {
  const int64_t run = part == entries ? heads : 1;  // heads that lie side by side on both sides
  for (int64_t h = 0; h < heads; h += run)
    context.downloads.bring(out + h * entries.size() + part.begin - entries.begin,
                            norms + h * part.size(), run * part.size(), context.compute);
}

const std::byte* first_value(const DeviceLayer& layer, Range part) {
  return layer.device_values.data() + (part.begin - layer.keys.begin) * layer.columns *
                                          static_cast<int64_t>(element_size(layer.type));
}

}  // namespace

void value_norms(Context& context, const LayerTrace& trace, Norm norm, Range entries, float* out) {
  DeviceLayer& layer = context.store.get(trace, context.compute);
  const int64_t heads = trace.k.dim(0);
  DeviceBuffer<float>& norms = context.norms.norms;
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
    bring_norms(context, norms.data(), heads, part, entries, out);
  });
}

void projected_norms(Context& context, const LayerTrace& trace, Norm norm, Range entries,
                     float* out) {
  DeviceLayer& layer = context.store.get(trace, context.compute);
  const int64_t heads = trace.q.dim(0);
  const bool squares = norm == Norm::l2;
  auto& [factors, norms, sums] = context.norms;
  if (squares) output_factors(context, layer, factors);
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
      check_shared_memory(
          context,
          std::max(row_norms_memory<Matrix>(task.depth), row_norms_memory<Type>(task.depth)),
          trace);
      if (!squares)
        launch_row_norms<Type, typename Type::Element>(task, heads, context.compute);
      else if constexpr (std::is_same_v<Type, Float32>)
        launch_row_norms<Float32, float>(task, heads, context.compute);
      else
        launch_row_norms<Float32, Widening<Type>>(task, heads, context.compute);
    });
    const int64_t count = heads * part.size();
    launch(narrow_sums, dim3(static_cast<unsigned>((count + 255) / 256)), 256, 0, context.compute,
           sums.data(), count, squares, norms.reserve(count));
    bring_norms(context, norms.data(), heads, part, entries, out);
  });
}

}  // namespace kvsim::cuda
