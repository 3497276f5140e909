// Norms of outputs after W_O.
#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/backend/cpu/factors.hpp"
#include "sim/backend/cpu/joint_factor.hpp"
#include "sim/backend/cpu/loader.hpp"
#include "sim/backend/cpu/verbs.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

constexpr int64_t kWidthRun = 192;                // columns of W_O of one task at most
constexpr int64_t kTileWidthRun = 256;            // with matrix tiles, which split a row for each
constexpr int64_t kRowsRun = 16 * kTileRows;      // of one task at most
constexpr int64_t kRowBytes = int64_t{12} << 20;  // of rows that are transposed, a thread

class CpuProjection : public Projection {
 public:
  CpuProjection(const Kernels& kernels, const LayerTrace& layer, ReplayMemory& memory)
      : kernels_(kernels), layer_(layer), memory_(memory), dv_(layer.value_dim()),
        by_tiles_(kernels.has_tiles() && element_size(layer.wo.type()) == sizeof(uint16_t)) {}

  void norms(std::span<const float* const> x, int64_t stride, std::span<const int64_t> steps,
             double* out) override;
  void head_norms(std::span<const float* const> x, int64_t stride, double* out) override;

 private:
  int64_t heads() const { return layer_.info->num_query_heads; }
  void norms_of(Range wanted, std::span<const float* const> x, int64_t stride,
                std::span<const int64_t> steps, double* out);
  int64_t width() const { return joined_ ? joint_.width() : layer_.wo.dim(2); }
  int64_t width_run() const;
  void join();
  void load_rows(Range rows, int64_t head, std::span<const float* const> x, int64_t stride,
                 std::span<const int64_t> steps, float* out) const;
  void load_tiles(Range wanted, std::span<const float* const> x, int64_t stride,
                  std::span<const int64_t> steps);
  void add_columns(const float* const* x, int64_t stride, int64_t rows, Range columns,
                   double* squares) const;
  void add_tile_columns(const float* xt, int64_t rows, Range columns, double* squares) const;
  const float* load_columns(int64_t c, int64_t count) const;

  const Kernels& kernels_;
  const LayerTrace& layer_;
  ReplayMemory& memory_;
  int64_t dv_;
  OutputFactors factors_;
  bool factorised_ = false;
  JointFactor joint_;
  bool by_tiles_;
  bool joined_ = false;  ///< outputs go through the factor in the place of W_O
};

/// Columns of one task: runs of about the same size.
int64_t CpuProjection::width_run() const {
  const int64_t most = by_tiles_ ? kTileWidthRun : kWidthRun;
  const int64_t runs = (width() + most - 1) / most;
  return padded((width() + runs - 1) / runs, by_tiles_ ? kPad : JointFactor::kPanel);
}

/// Takes the factor in the place of W_O, where that pays.
void CpuProjection::join() {
  if (joined_ || by_tiles_ || !JointFactor::pays(layer_)) return;
  joint_.make(kernels_, layer_, memory_.projected);
  joined_ = true;
}

/// Rows of the next product come near while this one computes: they lie in long columns, which the
/// processor does not foresee.
void bring_near(const float* x, int64_t count) {
  constexpr int64_t kLine = 16;
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(x + i, 0, 2);
}

/// squares[r] += sum over the columns of (x_r W)^2; x[r]: where the row's first head is, the next
/// is `stride` steps away. The factor has nothing above its diagonal.
void CpuProjection::add_columns(const float* const* x, int64_t stride, int64_t rows, Range columns,
                                double* squares) const {
  constexpr int64_t kTogether = JointFactor::kPanel;
  NormTask task{};
  task.x = x;
  task.part = dv_;
  task.stride = stride * dv_;
  task.rows = rows;
  task.ldb = kTogether;
  task.squares = true;
  task.lower = joined_;
  task.sums = squares;
  for (int64_t c = columns.begin; c < columns.end; c += kTogether) {
    const int64_t count = std::min(kTogether, columns.end - c);
    task.first = joined_ ? c : 0;
    task.b = joined_ ? joint_.panel(c) : load_columns(c, count);
    task.depth = heads() * dv_ - task.first;
    task.columns = padded(count, kPad);
    kernels_.norms(task);
  }
}

/// Columns c.. of W_O for all heads: [Hq * dv][kPanel].
const float* CpuProjection::load_columns(int64_t c, int64_t count) const {
  constexpr int64_t kTogether = JointFactor::kPanel;
  Scratch<float>& w = memory_.tiles[static_cast<size_t>(thread_index())].scores;
  w.reserve(heads() * dv_ * kTogether);
  for (int64_t head = 0; head < heads(); ++head)
    load_output_columns(layer_, head, c, count, kTogether, w.data() + head * dv_ * kTogether);
  return w.data();
}

/// The same with matrix tiles, head by head: they take differences of outputs apart for each run of
/// columns.
void CpuProjection::add_tile_columns(const float* xt, int64_t rows, Range columns,
                                     double* squares) const {
  const int64_t ld = padded(columns.size(), kPad);
  Scratch<float> w, y(padded(rows, kTileRows) * ld);
  for (int64_t head = 0; head < heads(); ++head) {
    ProductTask task{};
    set_paired_parts(kernels_, layer_.wo, head, columns, w, task);
    task.count = dv_;
    task.lde = kTileRows;
    task.lda = ld;
    task.fresh = head == 0;
    for (int64_t at = 0; at < rows; at += kTileRows) {
      task.e = xt + (at * heads() + head * kTileRows) * dv_;
      task.rows = std::min(kTileRows, rows - at);
      task.acc = y.data() + at * ld;
      if (at + kTileRows < rows) bring_near(task.e + heads() * dv_ * kTileRows, dv_ * kTileRows);
      kernels_.product(task);
    }
  }
  for (int64_t r = 0; r < rows; ++r) squares[r] += kernels_.row_sum(y.data() + r * ld, ld, true);
}

void CpuProjection::norms(std::span<const float* const> x, int64_t stride,
                          std::span<const int64_t> steps, double* out) {
  join();
  const int64_t rows = std::ssize(x) * std::ssize(steps);
  const int64_t fitting = kRowBytes / (heads() * dv_ * static_cast<int64_t>(sizeof(float)));
  const int64_t most = std::clamp(fitting / kTileRows * kTileRows, kTileRows, kRowsRun);
  const int64_t run = by_tiles_ ? threads() * most : rows;
  for (int64_t first = 0; first < rows; first += run)
    norms_of({first, std::min(rows, first + run)}, x, stride, steps, out + first);
}

/// Some of the rows for one head, transposed: [dv][kTileRows], zero beyond them. Steps that follow
/// one another lie side by side.
void CpuProjection::load_rows(Range rows, int64_t head, std::span<const float* const> x,
                              int64_t stride, std::span<const int64_t> steps, float* out) const {
  if (rows.size() < kTileRows) std::fill_n(out, dv_ * kTileRows, 0.0f);
  for (int64_t row = rows.begin, count = 0; row < rows.end; row += count) {
    const int64_t at = row % std::ssize(steps);
    const int64_t most = std::min(rows.end - row, std::ssize(steps) - at);
    const int64_t* const step = steps.data() + at;
    for (count = 1; count < most && step[count] == *step + count;) ++count;
    const float* const from = x[static_cast<size_t>(row / std::ssize(steps))] +
                              (head * stride + *step) * dv_;
    bring_near(from + count * dv_, count * dv_);
    kernels_.transpose(from, count, dv_, dv_, out + (row - rows.begin), kTileRows);
  }
}

/// Some of the rows as matrix tiles take them.
void CpuProjection::load_tiles(Range wanted, std::span<const float* const> x, int64_t stride,
                               std::span<const int64_t> steps) {
  const int64_t tiles = (wanted.size() + kTileRows - 1) / kTileRows;
  float* const xt = memory_.projected.reserve(tiles * heads() * dv_ * kTileRows);
  parallel_for(tiles * heads(), [&](int64_t part) {
    const int64_t first = wanted.begin + part / heads() * kTileRows;
    load_rows({first, std::min(wanted.end, first + kTileRows)}, part % heads(), x, stride, steps,
              xt + part * dv_ * kTileRows);
  });
}

/// Some of the rows, which are the steps of the first x, then those of the next, and so on.
void CpuProjection::norms_of(Range wanted, std::span<const float* const> x, int64_t stride,
                             std::span<const int64_t> steps, double* out) {
  const int64_t rows = wanted.size();
  const int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  std::vector<const float*> places;
  if (by_tiles_) {
    load_tiles(wanted, x, stride, steps);
  } else {
    for (const float* const set : x)
      for (const int64_t step : steps) places.push_back(set + step * dv_);
    places.resize(static_cast<size_t>(padded(rows, kPlaceStep)), places.back());
  }
  memory_.tiles.resize(std::max(memory_.tiles.size(), static_cast<size_t>(threads())));
  // Every run of columns has its own sums, added in order: no result depends on the threads, nor
  // on how many rows go through it together.
  const int64_t wide = width_run(), runs = (width() + wide - 1) / wide;
  const int64_t fewest = (row_tiles * kTileRows + kRowsRun - 1) / kRowsRun;
  const int64_t groups = std::max(fewest, std::min(row_tiles, (2 * threads() + runs - 1) / runs));
  const int64_t group = (row_tiles + groups - 1) / groups * kTileRows;
  Table<double> squares(runs, rows);
  parallel_for(groups * runs, [&](int64_t task) {
    const int64_t first = task / runs * group, run = task % runs;
    if (first >= rows) return;
    const Range columns{run * wide, std::min(width(), (run + 1) * wide)};
    const int64_t count = std::min(group, rows - first);
    double* const to = squares.row(run).data() + first;
    if (by_tiles_)
      return add_tile_columns(memory_.projected.data() + first * heads() * dv_, count, columns, to);
    // Some rows stay near for all panels of the factor; columns of W_O are widened once for all.
    const int64_t together = joined_ ? kTileRows : count;
    for (int64_t at = 0; at < count; at += together)
      add_columns(places.data() + first + at, stride, std::min(together, count - at), columns,
                  to + at);
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
  const int64_t count = std::ssize(x);
  parallel_for(heads(), [&](int64_t head) {
    std::vector<double> sums(static_cast<size_t>(stride));
    for (int64_t i = 0; i < count; ++i) {
      std::ranges::fill(sums, 0.0);
      factors_.add_squares(head, x[static_cast<size_t>(i)] + head * stride * dv_, stride,
                           sums.data());
      std::ranges::transform(sums, out + (i * heads() + head) * stride,
                             [](double sum) { return std::sqrt(sum); });
    }
  });
}

}  // namespace

std::unique_ptr<Projection> cpu_projection(const Kernels& kernels, const LayerTrace& layer,
                                           ReplayMemory& memory) {
  return std::make_unique<CpuProjection>(kernels, layer, memory);
}

}  // namespace kvsim
