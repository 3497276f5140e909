// Gram matrices of W_O, and products and forms of values with them, in float64 by cuBLAS.
#include "sim/backend/cuda/elements.hpp"
#include "sim/backend/cuda/verbs.hpp"

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
  std::vector<double> out(static_cast<size_t>(rows * columns), 0.0);
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
  std::vector<double> all(static_cast<size_t>(columns * columns));
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
    for (size_t p = 0; p < pairs.size(); ++p) {
      multiply_transposed(context, values, right.data() + static_cast<int64_t>(p) * matrix,
                          products.data(), part.size(), columns, columns, 1);
      launch(row_products, dim3(static_cast<unsigned>((part.size() + 7) / 8)), 256, 0,
             context.compute, products.data(), values, part.size(), static_cast<int>(columns),
             results.data());
      context.downloads.bring(pairs[p].forms + part.begin - entries.begin, results.data(),
                              part.size(), context.compute);
    }
  });
}

}  // namespace

void output_metrics(Context& context, const LayerTrace& trace, std::span<const HeadPair> pairs,
                    Range entries) {
  for (const HeadPair& pair : pairs) make_gram(context, trace, pair);
  value_forms(context, trace, pairs, entries);
}

void value_products(Context& context, const LayerTrace& trace, int kv_head, const double* y,
                    int64_t rows, Range entries, double* out) {
  DeviceLayer& layer = context.store.get(trace, context.compute);
  DeviceBuffer<double>& left = context.values.factor;
  DeviceBuffer<double>& products = context.values.products;
  upload(left, widened_rows(y, rows, trace.value_dim(), layer.columns), context.compute);
  for_each_value_part(context, layer, kv_head, entries, rows,
                      [&](Range part, const double* values) {
    products.reserve(rows * part.size());
    multiply_transposed(context, left.data(), values, products.data(), rows, part.size(),
                        layer.columns, 1);
    const int64_t run = part == entries ? rows : 1;  // rows that lie side by side on both sides
    for (int64_t r = 0; r < rows; r += run)
      context.downloads.bring(out + r * entries.size() + part.begin - entries.begin,
                              products.data() + r * part.size(), run * part.size(),
                              context.compute);
  });
}

}  // namespace kvsim::cuda
