// Norms of outputs after W_O: the products of whole rows by cuBLAS in float32, those of single
// heads through the factors of their Gram matrices.
#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda/elements.hpp"

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

constexpr int kSquareThreads = 256;

// One block per row: every thread sums its columns in float64, then halves meet in a fixed order.
// Memory sets the time.
__global__ void row_squares(const float* y, int columns, double* out) {
  double* const sums = reinterpret_cast<double*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int c = thread; c < columns; c += kSquareThreads) {
    const double x = static_cast<double>(y[static_cast<int64_t>(blockIdx.x) * columns + c]);
    sum += x * x;
  }
  sums[thread] = sum;
  for (int half = kSquareThreads / 2; half > 0; half /= 2) {
    block_barrier();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread == 0) out[blockIdx.x] = sums[0];
}

// out[row][head][columns] = x[head][steps[row]], zeros beyond dv. One block per row; reads and
// writes in one piece: memory sets the time.
__global__ void gather_rows(const float* x, const int64_t* steps, int64_t stride, int heads, int dv,
                            int columns, float* out) {
  const int64_t step = steps[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < heads * columns; i += kSquareThreads) {
    const int head = i / columns, c = i % columns;
    out[static_cast<int64_t>(blockIdx.x) * heads * columns + i] =
        c < dv ? x[(head * stride + step) * dv + c] : 0.0f;
  }
}

class CudaProjection : public Projection {
 public:
  CudaProjection(Context& context, const LayerTrace& layer)
      : context_(context), trace_(layer), memory_(context.projection),
        number_(++memory_.projections) {}

  void norms(std::span<const float* const> x, int64_t stride, std::span<const int64_t> steps,
             double* out) override {
    const std::lock_guard lock(context_.verb);
    const DeviceLayer& layer = context_.store.get(trace_, context_.compute);
    const int64_t depth = trace_.q.dim(0) * layer.columns;
    const int64_t width = layer.width, per_x = std::ssize(steps);
    const int64_t rows = std::ssize(x) * per_x;
    if (memory_.weights_of != number_) {
      memory_.weights.reserve(depth * width);
      widen_to_float(layer.type, layer.output.data(), depth * width, memory_.weights.data(),
                     context_.compute);
      memory_.weights_of = number_;
    }
    upload(memory_.steps, std::vector<int64_t>(steps.begin(), steps.end()), context_.compute);
    const int64_t step = std::clamp<int64_t>(
        product_share(context_.memory) /
            (std::max(width, depth) * static_cast<int64_t>(sizeof(float))),
        1, std::max<int64_t>(rows, 1));
    for (int64_t first = 0; first < rows; first += step) {
      const int64_t count = std::min(step, rows - first);
      memory_.rows.reserve(count * depth);
      for (int64_t row = first; row < first + count;) {
        const Range chosen{row % per_x, std::min(per_x, row % per_x + first + count - row)};
        gather(x[row / per_x], stride, steps, chosen, layer.columns,
               memory_.rows.data() + (row - first) * depth);
        row += chosen.size();
      }
      memory_.products.reserve(count * width);
      memory_.sums.reserve(count);
      const float one = 1, zero = 0;
      // Row-major y = x w is column-major y^T = w^T x^T.
      KVSIM_BLAS_CHECK(cublasSetStream(context_.blas, context_.compute));
      KVSIM_BLAS_CHECK(cublasSgemm(context_.blas, CUBLAS_OP_N, CUBLAS_OP_N, static_cast<int>(width),
                                   static_cast<int>(count), static_cast<int>(depth), &one,
                                   memory_.weights.data(), static_cast<int>(width),
                                   memory_.rows.data(), static_cast<int>(depth), &zero,
                                   memory_.products.data(), static_cast<int>(width)));
      launch(row_squares, dim3(static_cast<unsigned>(count)), kSquareThreads,
             kSquareThreads * sizeof(double), context_.compute, memory_.products.data(),
             static_cast<int>(width), memory_.sums.data());
      download(out + first, memory_.sums.data(), count, context_.compute);
      context_.compute.wait();
    }
    for (int64_t r = 0; r < rows; ++r) out[r] = std::sqrt(out[r]);
  }

  void head_norms(std::span<const float* const> x, int64_t stride, double* out) override {
    const std::lock_guard lock(context_.verb);
    const DeviceLayer& layer = context_.store.get(trace_, context_.compute);
    const int64_t heads = trace_.q.dim(0), dv = trace_.value_dim();
    if (memory_.factors_of != number_) output_factors(context_, layer, memory_.factors);
    memory_.factors_of = number_;
    check_shared_memory(context_, row_norms_memory<Float32>(static_cast<int>(layer.columns)),
                        trace_);
    memory_.sums.reserve(heads * stride);
    for (int64_t i = 0; i < std::ssize(x); ++i) {
      RowNorms task{};
      task.x = x[i];
      if (!context_.replay.holds(x[i])) {
        float* const staged = memory_.staged.reserve(heads * stride * dv);
        std::copy_n(x[i], heads * stride * dv, staged);
        task.x = upload_pinned(memory_.rows.reserve(heads * stride * dv), staged,
                               heads * stride * dv, context_.compute);
      }
      task.x_slice = stride * dv;
      task.x_row = dv;
      task.rows = stride;
      task.group = 1;
      task.x_columns = static_cast<int>(dv);
      task.b = memory_.factors.data();
      task.depth = task.width = static_cast<int>(layer.columns);
      task.squares = true;
      task.out = memory_.sums.data();
      launch_row_norms<Float32, float>(task, heads, context_.compute);
      double* const to = out + i * heads * stride;
      download(to, memory_.sums.data(), heads * stride, context_.compute);
      context_.compute.wait();
      for (int64_t r = 0; r < heads * stride; ++r) to[r] = std::sqrt(to[r]);
    }
  }

 private:
  /// Puts rows `chosen` of steps of one x, all heads side by side, on the device.
  void gather(const float* x, int64_t stride, std::span<const int64_t> steps, Range chosen,
              int64_t columns, float* to) {
    const int64_t heads = trace_.q.dim(0), dv = trace_.value_dim(), depth = heads * columns;
    if (context_.replay.holds(x)) {
      launch(gather_rows, dim3(static_cast<unsigned>(chosen.size())), kSquareThreads, 0,
             context_.compute, x, memory_.steps.data() + chosen.begin, stride,
             static_cast<int>(heads), static_cast<int>(dv), static_cast<int>(columns), to);
      return;
    }
    context_.compute.wait();  // what was staged before has arrived
    float* const staged = memory_.staged.reserve(chosen.size() * depth);
    std::fill_n(staged, chosen.size() * depth, 0.0f);
    for (int64_t s = chosen.begin; s < chosen.end; ++s)
      for (int64_t h = 0; h < heads; ++h)
        std::copy_n(x + (h * stride + steps[s]) * dv, dv,
                    staged + (s - chosen.begin) * depth + h * columns);
    upload_pinned(to, staged, chosen.size() * depth, context_.compute);
  }

  Context& context_;
  const LayerTrace& trace_;
  ProjectionMemory& memory_;
  int64_t number_;
};

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
  std::vector<double> gram(step * columns * columns);
  std::vector<float> all(heads * columns * columns, 0.0f);
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
          all[((first + i) * columns + k) * columns + c] = static_cast<float>(factor.r(c, k));
    });
  }
  upload(factors, all, context.compute);
}

std::unique_ptr<Projection> CudaBackend::projection(const LayerTrace& layer) {
  return std::make_unique<CudaProjection>(context_, layer);
}

}  // namespace kvsim::cuda
