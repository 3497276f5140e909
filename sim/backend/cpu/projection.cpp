// Norms of outputs after W_O.
#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/backend/cpu/factors.hpp"
#include "sim/backend/cpu/loader.hpp"
#include "sim/backend/cpu/verbs.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

constexpr int64_t kWidthRun = 128;      // columns of W_O of one task
constexpr int64_t kTileWidthRun = 256;  // with matrix tiles, which split a row for each
constexpr int64_t kProducts = 20 * kTileRows * kWidthRun;  // of a task at most: they stay near
constexpr int64_t kRowBytes = int64_t{8} << 20;            // of such rows, for each thread

class CpuProjection : public Projection {
 public:
  CpuProjection(const Kernels& kernels, const LayerTrace& layer, ReplayMemory& memory)
      : kernels_(kernels), layer_(layer), memory_(memory), dv_(layer.value_dim()) {}

  void norms(std::span<const float* const> x, int64_t stride, std::span<const int64_t> steps,
             double* out) override;
  void head_norms(std::span<const float* const> x, int64_t stride, double* out) override;

 private:
  int64_t heads() const { return layer_.info->num_query_heads; }
  int64_t width_run() const { return kernels_.has_tiles() ? kTileWidthRun : kWidthRun; }
  void norms_of(Range wanted, std::span<const float* const> x, int64_t stride,
                std::span<const int64_t> steps, double* out);
  void add_columns(const float* xt, int64_t rows, int64_t c, double* squares) const;

  const Kernels& kernels_;
  const LayerTrace& layer_;
  ReplayMemory& memory_;
  int64_t dv_;
  OutputFactors factors_;
  bool factorised_ = false;
};

/// squares[r] += sum over columns c..c+width_run()-1 of (x_r W)^2;
/// xt[row tiles][Hq * dv][kTileRows].
void CpuProjection::add_columns(const float* xt, int64_t rows, int64_t c, double* squares) const {
  const int64_t columns = std::min(width_run(), layer_.wo.dim(2) - c);
  const int64_t ld = padded(columns, kPad), all = padded(rows, kTileRows);
  Scratch<float> w, y(all * ld);
  for (int64_t head = 0; head < heads(); ++head) {
    ProductTask weights{};
    if (!set_paired_parts(kernels_, layer_.wo, head, {c, c + columns}, w, weights)) {
      weights.ldv = spread_stride<float>(columns);
      load_output_columns(layer_, head, c, columns, weights.ldv, w.reserve(dv_ * weights.ldv));
      weights.v = w.data();
      weights.columns = ld;
    }
    for (int64_t at = 0; at < rows; at += kTileRows) {
      ProductTask task = weights;
      task.count = dv_;
      task.e = xt + (at * heads() + head * kTileRows) * dv_;
      task.lde = kTileRows;
      task.rows = std::min(kTileRows, rows - at);
      task.lda = ld;
      task.acc = y.data() + at * ld;
      task.fresh = head == 0;
      kernels_.product(task);
    }
  }
  for (int64_t r = 0; r < rows; ++r) squares[r] += kernels_.row_sum(y.data() + r * ld, ld, true);
}

void CpuProjection::norms(std::span<const float* const> x, int64_t stride,
                          std::span<const int64_t> steps, double* out) {
  const int64_t rows = std::ssize(x) * std::ssize(steps);
  const int64_t fitting = kRowBytes * threads() /
                          (heads() * dv_ * static_cast<int64_t>(sizeof(float)));
  const int64_t run = std::clamp(fitting / kTileRows * kTileRows, kTileRows,
                                 kProducts / width_run());
  for (int64_t first = 0; first < rows; first += run)
    norms_of({first, std::min(rows, first + run)}, x, stride, steps, out + first);
}

/// Some of the rows, which are the steps of the first x, then those of the next, and so on.
void CpuProjection::norms_of(Range wanted, std::span<const float* const> x, int64_t stride,
                             std::span<const int64_t> steps, double* out) {
  const int64_t rows = wanted.size(), per_x = std::ssize(steps);
  const int64_t depth = heads() * dv_, width = layer_.wo.dim(2);
  const int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  float* const xt = memory_.projected.reserve(row_tiles * depth * kTileRows);
  parallel_for(row_tiles * heads(), [&](int64_t part) {
    const int64_t first = part / heads() * kTileRows, head = part % heads();
    const int64_t count = std::min(kTileRows, rows - first);
    float* const to = xt + (first * heads() + head * kTileRows) * dv_;
    Scratch<float> gathered(count * dv_);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = wanted.begin + first + r;
      std::copy_n(x[static_cast<size_t>(row / per_x)] +
                      (head * stride + steps[static_cast<size_t>(row % per_x)]) * dv_,
                  dv_, gathered.data() + r * dv_);
    }
    if (count < kTileRows) std::fill_n(to, dv_ * kTileRows, 0.0f);
    kernels_.transpose(gathered.data(), count, dv_, dv_, to, kTileRows);
  });
  // Every run of columns has its own sums, added in order: no result depends on the threads.
  const int64_t runs = (width + width_run() - 1) / width_run();
  Table<double> squares(runs, rows);
  parallel_for(runs, [&](int64_t run) {
    add_columns(xt, rows, run * width_run(), squares.row(run).data());
  });
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t run = 0; run < runs; ++run) sum += squares(run, r);
    out[r] = std::sqrt(sum);
  }
}

void CpuProjection::head_norms(std::span<const float* const> x, int64_t stride, double* out) {
  if (!factorised_) factors_ = OutputFactors(kernels_, layer_);
  factorised_ = true;
  const int64_t count = static_cast<int64_t>(x.size());
  parallel_for(heads(), [&](int64_t head) {
    Scratch<float> xt(dv_ * kTileRows);
    double sums[kTileRows];
    for (int64_t i = 0; i < count; ++i)
      for (int64_t at = 0; at < stride; at += kTileRows) {
        const int64_t rows = std::min(kTileRows, stride - at);
        std::fill_n(xt.data(), dv_ * kTileRows, 0.0f);
        std::fill_n(sums, kTileRows, 0.0);
        kernels_.transpose(x[static_cast<size_t>(i)] + (head * stride + at) * dv_, rows, dv_, dv_,
                           xt.data(), kTileRows);
        factors_.add_squares(head, xt.data(), kTileRows, rows, sums);
        double* const to = out + (i * heads() + head) * stride + at;
        for (int64_t r = 0; r < rows; ++r) to[r] = std::sqrt(sums[r]);
      }
  });
}

}  // namespace

std::unique_ptr<Projection> cpu_projection(const Kernels& kernels, const LayerTrace& layer,
                                           ReplayMemory& memory) {
  return std::make_unique<CpuProjection>(kernels, layer, memory);
}

}  // namespace kvsim
