#include "sim/backend/cuda/elements.hpp"
#include "sim/backend/gram_factor.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim::cuda {
namespace {

constexpr int kWidenThreads = 256;

// One element per thread; reads and writes in one piece: memory sets the time.
template <class Type, class To>
__global__ void widen_elements(const Widening<Type>* from, int64_t count, To* to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWidenThreads + threadIdx.x;
  if (i < count) to[i] = static_cast<To>(from[i].widened());
}

template <class To>
void widen_all(ElementType type, const std::byte* from, int64_t count, To* to,
               cudaStream_t stream) {
  if (count == 0) return;
  with_types<Bfloat16, Float16, Float32>(type, [&](auto chosen) {
    using Type = decltype(chosen);
    launch(widen_elements<Type, To>,
           dim3(static_cast<unsigned>((count + kWidenThreads - 1) / kWidenThreads)), kWidenThreads,
           0, stream, reinterpret_cast<const Widening<Type>*>(from), count, to);
  });
}

}  // namespace

void widen_to_double(ElementType type, const std::byte* from, int64_t count, double* to,
                     cudaStream_t stream) {
  widen_all(type, from, count, to, stream);
}
void widen_to_float(ElementType type, const std::byte* from, int64_t count, float* to,
                    cudaStream_t stream) {
  widen_all(type, from, count, to, stream);
}

void multiply_transposed(Context& context, const double* a, const double* b, double* c, int64_t m,
                         int64_t n, int64_t k, int64_t count) {
  const double one = 1, zero = 0;
  // Row-major c = a b^T is column-major c^T = (b^T)^T a^T.
  KVSIM_BLAS_CHECK(cublasSetStream(context.blas, context.compute));
  KVSIM_BLAS_CHECK(cublasDgemmStridedBatched(
      context.blas, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(n), static_cast<int>(m),
      static_cast<int>(k), &one, b, static_cast<int>(k), n * k, a, static_cast<int>(k), m * k,
      &zero, c, static_cast<int>(n), m * n, static_cast<int>(count)));
}

void output_factors(Context& context, const DeviceLayer& layer, DeviceBuffer<float>& factors) {
  const int64_t heads = layer.wo.dim(0), dv = layer.v.dim(2), columns = layer.columns;
  const int64_t matrix = columns * layer.width;
  const int64_t step = std::clamp<int64_t>(
      product_share(context.memory) / (matrix * static_cast<int64_t>(sizeof(double))), 1, heads);
  DeviceBuffer<double> wide, grams;
  wide.reserve(step * matrix);
  grams.reserve(step * columns * columns);
  std::vector<double> gram(static_cast<size_t>(step * columns * columns));
  std::vector<float> all(static_cast<size_t>(heads * columns * columns), 0.0f);
  for (int64_t first = 0; first < heads; first += step) {
    const int64_t count = std::min(step, heads - first);
    widen_to_double(
        layer.type,
        layer.output.data() + first * matrix * static_cast<int64_t>(element_size(layer.type)),
        count * matrix, wide.data(), context.compute);
    multiply_transposed(context, wide.data(), wide.data(), grams.data(), columns, columns,
                        layer.width, count);
    download(gram.data(), grams.data(), count * columns * columns, context.compute);
    context.compute.wait();
    parallel_for(count, [&](int64_t i) {
      Table<double> g(dv, dv);
      for (int64_t r = 0; r < dv; ++r)
        std::copy_n(gram.data() + (i * columns + r) * columns, dv, g.row(r).data());
      const GramFactor factor = factor_of_gram(g);
      for (int64_t k = 0; k < dv; ++k)
        for (int64_t c = 0; c < dv; ++c)
          all[static_cast<size_t>(((first + i) * columns + k) * columns + c)] = static_cast<float>(
              factor.r(c, k));
    });
  }
  upload(factors, all, context.compute);
}

}  // namespace kvsim::cuda
