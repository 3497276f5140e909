// Norms of values, as they are and projected, and their products in the metric of W_O (cuBLAS).
#include <type_traits>

#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda/elements.hpp"

namespace kvsim::cuda {
namespace {

// One warp per row; lanes take every 32nd column and meet in a fixed order.
__global__ void row_products(const double* a, const double* b, int64_t rows, int columns,
                             double* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  double sum = 0;
  for (int c = lane; c < columns && row < rows; c += 32)
    sum += a[row * columns + c] * b[row * columns + c];
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (lane == 0 && row < rows) out[row] = sum;
}

/// Rows of a [rows][dv] matrix of the host with `columns` columns, zeros beyond dv.
std::vector<double> widened_rows(const double* from, int64_t rows, int64_t dv, int64_t columns) {
  std::vector<double> out(rows * columns, 0.0);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * dv, dv, out.data() + r * columns);
  return out;
}

/// visit(part, values): values [part][columns] of one KV head in float64 on the device, as many as
/// leave room for `products` numbers for each.
template <class Visit>
void for_each_value_part(Context& context, DeviceLayer& layer, int kv_head, Range entries,
                         int64_t products, const Visit& visit) {
  DeviceBuffer<double>& wide = context.values.wide;
  const int64_t most = product_share(context.memory) /
                       (std::max(products, layer.columns) * static_cast<int64_t>(sizeof(double)));
  for_each_part(context, layer, entries, most, [&](Range part) {
    const int64_t first = (kv_head * layer.keys.size() + part.begin - layer.keys.begin) *
                          layer.columns;
    wide.reserve(part.size() * layer.columns);
    widen_to_double(
        layer.type,
        layer.device_values.data() + first * static_cast<int64_t>(element_size(layer.type)),
        part.size() * layer.columns, wide.data(), context.compute);
    visit(part, wide.data());
  });
}

/// G = W^a (W^b)^T.
void make_gram(Context& context, const LayerTrace& trace, const HeadPair& pair) {
  const DeviceLayer& layer = context.store.get(trace, context.compute);
  const int64_t dv = trace.value_dim(), columns = layer.columns;
  const int64_t matrix = columns * layer.width;
  DeviceBuffer<double>& wide = context.values.wide;
  DeviceBuffer<double>& gram = context.values.products;
  wide.reserve(2 * matrix);
  gram.reserve(columns * columns);
  for (int i = 0; i < 2; ++i)
    widen_to_double(layer.type,
                    layer.output.data() + (i == 0 ? pair.head_a : pair.head_b) * matrix *
                                              static_cast<int64_t>(element_size(layer.type)),
                    matrix, wide.data() + i * matrix, context.compute);
  multiply_transposed(context, wide.data(), wide.data() + matrix, gram.data(), columns, columns,
                      layer.width, 1);
  std::vector<double> all(columns * columns);
  context.downloads.bring(all.data(), gram.data(), columns * columns, context.compute);
  for (int64_t r = 0; r < dv; ++r) std::copy_n(all.data() + r * columns, dv, pair.gram + r * dv);
}

/// v_i G v_i^T of all pairs.
void value_forms(Context& context, const LayerTrace& trace, std::span<const HeadPair> pairs,
                 Range entries) {
  DeviceLayer& layer = context.store.get(trace, context.compute);
  const int64_t dv = trace.value_dim(), columns = layer.columns, matrix = columns * columns;
  std::vector<double> matrices(pairs.size() * static_cast<size_t>(matrix), 0.0);  // G, transposed
  for (size_t p = 0; p < pairs.size(); ++p)
    for (int64_t r = 0; r < dv; ++r)
      for (int64_t c = 0; c < dv; ++c)
        matrices[p * static_cast<size_t>(matrix) + static_cast<size_t>(c * columns + r)] =
            pairs[p].gram[r * dv + c];
  DeviceBuffer<double>& right = context.values.factor;
  DeviceBuffer<double>& products = context.values.products;
  DeviceBuffer<double>& results = context.values.forms;
  upload(right, matrices, context.compute);
  const int kv_head = pairs.front().head_a / trace.info->group_size();
  for_each_value_part(context, layer, kv_head, entries, columns,
                      [&](Range part, const double* values) {
    products.reserve(part.size() * columns);
    results.reserve(part.size());
    for (int64_t p = 0; p < std::ssize(pairs); ++p) {
      multiply_transposed(context, values, right.data() + p * matrix, products.data(), part.size(),
                          columns, columns, 1);
      launch(row_products, dim3(static_cast<unsigned>((part.size() + 7) / 8)), 256, 0,
             context.compute, products.data(), values, part.size(), static_cast<int>(columns),
             results.data());
      context.downloads.bring(pairs[p].forms + part.begin - entries.begin, results.data(),
                              part.size(), context.compute);
    }
  });
}

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

// A block owns Type::kRows rows of one slice, a warp 16 of them, a lane the columns of the
// accumulator layout. Shared memory: the rows once, kRows * (depth + pad) elements, and 64 columns
// of b at a time, depth * (64 + pad): 53 KB for d = 128 in 16 bit, 69 KB in float32. Per 64 columns
// a block does 2 * kRows * 64 * depth flop on depth * 64 elements of b, which all blocks of a slice
// read from the second-level cache: 128 flop per byte in 16 bit, so that tensor cores and not
// memory set the time. Sums of 64 columns are float32, of all columns float64.
template <class Type, class Source>
__global__ void row_norms(RowNorms p) {
  using Element = typename Type::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * Type::kRows;
  const int slice = static_cast<int>(blockIdx.y);
  const int ldx = p.depth + Type::kPad, ldb = kNormColumns + Type::kPadValues;
  Element* const x = reinterpret_cast<Element*>(shared_memory());
  Element* const b = x + Type::kRows * ldx;

  const Source* const from = static_cast<const Source*>(p.x) +
                             static_cast<int64_t>(slice / p.group) * p.x_slice;
  for (int i = thread; i < Type::kRows * p.depth; i += threads) {
    const int row = i / p.depth, column = i % p.depth;
    const bool there = first + row < p.rows && column < p.x_columns;
    const Source value = there ? from[(first + row) * p.x_row + column] : Source{};
    if constexpr (std::is_same_v<Source, Element>)
      x[row * ldx + column] = value;
    else
      x[row * ldx + column] = value.widened();
  }

  const Element* const matrix = static_cast<const Element*>(p.b) +
                                static_cast<int64_t>(slice) * p.depth * p.width;
  constexpr int kPiece = 16 / static_cast<int>(sizeof(Element));
  double sums[2] = {0, 0};  // rows g and g + 8 of the warp
  for (int c = 0; c < p.width; c += kNormColumns) {
    for (int i = thread; i < p.depth * (kNormColumns / kPiece); i += threads) {
      const int row = i / (kNormColumns / kPiece), column = i % (kNormColumns / kPiece) * kPiece;
      const bool there = c + column < p.width;
      copy16_async(b + row * ldb + column,
                   matrix + static_cast<int64_t>(row) * p.width + (there ? c + column : 0), there);
    }
    copies_close_group();
    copies_wait<0>();
    block_barrier();
    float part[2] = {0, 0};
    for (int pair = 0; pair < kNormColumns; pair += 16) {
      float y0[4] = {0, 0, 0, 0}, y1[4] = {0, 0, 0, 0};
      for (int begin = 0; begin < p.depth; begin += Type::kChain) {
        float c0[4] = {0, 0, 0, 0}, c1[4] = {0, 0, 0, 0};
        for (int k = begin; k < begin + Type::kChain && k < p.depth; k += Type::kStep) {
          Fragment a;
          Type::load_a(a, x + warp * 16 * ldx + k, ldx, lane);
          Type::template multiply<false>(c0, c1, a, b + k * ldb + pair, ldb, lane);
        }
        for (int j = 0; j < 4; ++j) {
          y0[j] += c0[j];
          y1[j] += c1[j];
        }
      }
      for (int j = 0; j < 4; ++j)
        part[j / 2] += p.squares ? y0[j] * y0[j] + y1[j] * y1[j] : fabsf(y0[j]) + fabsf(y1[j]);
    }
    for (int r = 0; r < 2; ++r) sums[r] += static_cast<double>(part[r]);
    block_barrier();  // before the next columns overwrite these
  }
  for (int r = 0; r < 2; ++r) {
    sums[r] += shuffle_xor(sums[r], 1);
    sums[r] += shuffle_xor(sums[r], 2);
    const int64_t row = first + warp * 16 + lane / 4 + 8 * r;
    if (lane % 4 == 0 && row < p.rows) p.out[slice * p.rows + row] = sums[r];
  }
}

}  // namespace

void CudaBackend::output_metrics(const LayerTrace& trace, std::span<const HeadPair> pairs,
                                 Range entries) {
  const std::lock_guard lock(context_.verb);
  for (const HeadPair& pair : pairs) make_gram(context_, trace, pair);
  value_forms(context_, trace, pairs, entries);
}

void CudaBackend::value_products(const LayerTrace& trace, int kv_head, const double* y,
                                 int64_t rows, Range entries, double* out) {
  const std::lock_guard lock(context_.verb);
  DeviceLayer& layer = context_.store.get(trace, context_.compute);
  DeviceBuffer<double>& left = context_.values.factor;
  DeviceBuffer<double>& products = context_.values.products;
  upload(left, widened_rows(y, rows, trace.value_dim(), layer.columns), context_.compute);
  for_each_value_part(context_, layer, kv_head, entries, rows,
                      [&](Range part, const double* values) {
    products.reserve(rows * part.size());
    multiply_transposed(context_, left.data(), values, products.data(), rows, part.size(),
                        layer.columns, 1);
    const int64_t run = part == entries ? rows : 1;  // rows that lie side by side on both sides
    for (int64_t r = 0; r < rows; r += run)
      context_.downloads.bring(out + r * entries.size() + part.begin - entries.begin,
                               products.data() + r * part.size(), run * part.size(),
                               context_.compute);
  });
}

void CudaBackend::value_norms(const LayerTrace& trace, Norm norm, Range entries, float* out) {
  const std::lock_guard lock(context_.verb);
  DeviceLayer& layer = context_.store.get(trace, context_.compute);
  const int64_t heads = trace.k.dim(0);
  DeviceBuffer<float>& norms = context_.norms.norms;
  for_each_part(context_, layer, entries, kMostEntries, [&](Range part) {
    norms.reserve(heads * part.size());
    with_types<Bfloat16, Float16, Float32>(layer.type, [&](auto type) {
      using Type = decltype(type);
      launch(value_row_norms<Type>,
             dim3(static_cast<unsigned>((part.size() + 7) / 8), static_cast<unsigned>(heads)), 256,
             0, context_.compute, reinterpret_cast<const Widening<Type>*>(first_value(layer, part)),
             part.size(), layer.keys.size(), static_cast<int>(layer.columns), norm == Norm::l2,
             norms.data());
    });
    bring_norms(context_, norms.data(), heads, part, entries, out);
  });
}

void CudaBackend::projected_norms(const LayerTrace& trace, Norm norm, Range entries, float* out) {
  const std::lock_guard lock(context_.verb);
  DeviceLayer& layer = context_.store.get(trace, context_.compute);
  const int64_t heads = trace.q.dim(0);
  const bool squares = norm == Norm::l2;
  auto& [factors, norms, sums] = context_.norms;
  if (squares) output_factors(context_, layer, factors);
  for_each_part(context_, layer, entries, kMostEntries, [&](Range part) {
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
          context_,
          std::max(row_norms_memory<Matrix>(task.depth), row_norms_memory<Type>(task.depth)),
          trace);
      if (!squares)
        launch_row_norms<Type, typename Type::Element>(task, heads, context_.compute);
      else if constexpr (std::is_same_v<Type, Float32>)
        launch_row_norms<Float32, float>(task, heads, context_.compute);
      else
        launch_row_norms<Float32, Widening<Type>>(task, heads, context_.compute);
    });
    const int64_t count = heads * part.size();
    launch(narrow_sums, dim3(static_cast<unsigned>((count + 255) / 256)), 256, 0, context_.compute,
           sums.data(), count, squares, norms.reserve(count));
    bring_norms(context_, norms.data(), heads, part, entries, out);
  });
}

template <class Type, class Source>
void launch_row_norms(const RowNorms& norms, int64_t slices, cudaStream_t stream) {
  if (norms.rows == 0) return;
  launch(row_norms<Type, Source>,
         dim3(static_cast<unsigned>((norms.rows + Type::kRows - 1) / Type::kRows),
              static_cast<unsigned>(slices)),
         Type::kRows * 2, row_norms_memory<Type>(norms.depth), stream, norms);
}

template void launch_row_norms<Bfloat16, Bfloat16::Element>(const RowNorms&, int64_t, cudaStream_t);
template void launch_row_norms<Float16, Float16::Element>(const RowNorms&, int64_t, cudaStream_t);
template void launch_row_norms<Float32, float>(const RowNorms&, int64_t, cudaStream_t);
template void launch_row_norms<Float32, Widening<Bfloat16>>(const RowNorms&, int64_t, cudaStream_t);
template void launch_row_norms<Float32, Widening<Float16>>(const RowNorms&, int64_t, cudaStream_t);

}  // namespace kvsim::cuda
