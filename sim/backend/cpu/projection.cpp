// Norms of outputs after W_O.

#include "sim/backend/cpu/factors.hpp"
#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {
namespace {

constexpr int64_t kWidthRun = 192;            // columns of W_O of one task at most
constexpr int64_t kRowsRun = 16 * kTileRows;  // of one task at most

struct CpuProjection : Projection {
  CpuProjection(const Kernels& kernels, const LayerTrace& layer, ReplayMemory& memory)
      : kernels_(kernels), layer_(layer), memory_(memory), dv_(layer.value_dim()) {}

  /// Rows are the steps of the first x, then those of the next, and so on.
  void norms(std::span<const float* const> x, int64_t stride, std::span<const int64_t> steps,
             double* out) override {
    join();
    const int64_t rows = std::ssize(x) * std::ssize(steps);
    if (rows == 0) return;
    const int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
    std::vector<const float*> places;
    for (const float* const set : x)
      for (const int64_t step : steps) places.push_back(set + step * dv_);
    places.resize(padded(rows, kPlaceStep), places.back());
    memory_.tiles.resize(std::max<size_t>(memory_.tiles.size(), threads()));
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

  void head_norms(std::span<const float* const> x, int64_t stride, double* out) override {
    if (!factorised_) factors_ = OutputFactors(kernels_, layer_);
    factorised_ = true;
    const int64_t count = std::ssize(x);
    parallel_for(heads(), [&](int64_t head) {
      std::vector<double> sums(stride);
      for (int64_t i = 0; i < count; ++i) {
        std::ranges::fill(sums, 0.0);
        factors_.add_squares(head, x[i] + head * stride * dv_, stride, sums.data());
        std::ranges::transform(sums, out + (i * heads() + head) * stride,
                               [](double sum) { return std::sqrt(sum); });
      }
    });
  }

 private:
  int64_t heads() const { return layer_.info->num_query_heads; }
  int64_t width() const { return joined_ ? joint_.width() : layer_.wo.dim(2); }
  /// Columns of one task: runs of about the same size.
  int64_t width_run() const {
    const int64_t runs = (width() + kWidthRun - 1) / kWidthRun;
    return padded((width() + runs - 1) / runs, JointFactor::kPanel);
  }

  /// Takes the factor in the place of W_O, where that pays.
  void join() {
    if (joined_ || !JointFactor::pays(layer_)) return;
    joint_.make(kernels_, layer_, memory_.projected);
    joined_ = true;
  }

  /// squares[r] += sum over the columns of (x_r W)^2; x[r]: where the row's first head is, the next
  /// is `stride` steps away. The factor has nothing above its diagonal.
  void add_columns(const float* const* x, int64_t stride, int64_t rows, Range columns,
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
  const float* load_columns(int64_t c, int64_t count) const {
    constexpr int64_t kTogether = JointFactor::kPanel;
    Scratch<float>& w = memory_.tiles[thread_index()].scores;
    w.reserve(heads() * dv_ * kTogether);
    for (int64_t head = 0; head < heads(); ++head)
      load_output_columns(layer_, head, c, count, kTogether, w.data() + head * dv_ * kTogether);
    return w.data();
  }

  const Kernels& kernels_;
  const LayerTrace& layer_;
  ReplayMemory& memory_;
  int64_t dv_;
  OutputFactors factors_;
  bool factorised_ = false;
  JointFactor joint_;
  bool joined_ = false;  ///< outputs go through the factor in the place of W_O
};

}  // namespace

std::unique_ptr<Projection> CpuBackend::projection(const LayerTrace& layer) {
  return std::make_unique<CpuProjection>(kernels_, layer, replay_memory_);
}

}  // namespace kvsim
