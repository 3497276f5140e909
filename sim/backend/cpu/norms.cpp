// Norms of values, alone and after the output projection, and of outputs after W_O.

#include "sim/backend/cpu/factors.hpp"
#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {
namespace {

constexpr int64_t kValueRun = 256;     // entries of one task of value_norms
constexpr int64_t kTilesPerTask = 8;   // row tiles that share one float32 copy of a block of W^h
constexpr int64_t kNormColumns = 512;  // columns of W^h in float32 at a time

/// Values of entries of one KV head as pairs, transposed: tiles vt[tile][pairs][kTileRows].
void load_value_pairs(const Kernels& kernels, const LayerTrace& layer, int64_t kv_head,
                      Range entries, float* vt) {
  const int64_t depth = layer.value_dim() / 2;
  std::fill_n(vt, padded(entries.size(), kTileRows) * depth, 0.0f);
  for (int64_t at = 0; at < entries.size(); at += kTileRows) {
    const int64_t count = std::min(kTileRows, entries.size() - at);
    kernels.transpose(stored_pairs(layer.v, kv_head, entries.begin + at), count, depth, depth,
                      vt + at * depth, kTileRows);
  }
}

/// Columns c.. of W^h, of bfloat16, as pairs of rows: [pairs][ld]; zero beyond.
void load_output_pairs(const LayerTrace& layer, int64_t head, int64_t c, int64_t columns,
                       int64_t ld, float* out) {
  std::fill_n(out, layer.value_dim() / 2 * ld, 0.0f);
  for (int64_t k = 0; k < layer.value_dim(); k += 2, out += ld) {
    auto* const words = reinterpret_cast<uint16_t*>(out);
    for (int64_t member = 0; member < 2; ++member) {
      const auto* const row = reinterpret_cast<const uint16_t*>(layer.wo.row(head, k + member)) + c;
      for (int64_t i = 0; i < columns; ++i) words[2 * i + member] = row[i];
    }
  }
}

/// Adds |v_i W^h|_1 of every entry, a block of columns of W^h at a time. `v`: pairs as above, or
/// the values.
void add_projected_l1(const Kernels& kernels, const LayerTrace& layer, int64_t head,
                      int64_t entries, bool pairs, const float* v, Scratch<float>& w,
                      double* sums) {
  const int64_t depth = pairs ? layer.value_dim() / 2 : layer.value_dim();
  const int64_t width = layer.wo.dim(2);
  for (int64_t c = 0; c < width; c += kNormColumns) {
    const int64_t columns = std::min(kNormColumns, width - c);
    const int64_t ld = spread_stride<float>(columns);
    w.reserve(depth * ld);
    pairs ? load_output_pairs(layer, head, c, columns, ld, w.data())
          : load_output_columns(layer, head, c, columns, ld, w.data());
    for (int64_t at = 0; at < entries; at += kTileRows) {
      NormTask task{};
      task.rows = std::min(kTileRows, entries - at);
      const auto places = row_places(v + at * depth, task.rows, depth);
      task.a = v + at * depth;
      task.lda = kTileRows;
      task.x = places.data();
      task.part = depth;
      task.b = w.data();
      task.ldb = ld;
      task.columns = padded(columns, kPad);
      task.depth = depth;
      task.pairs = pairs;
      task.sums = sums + at;
      kernels.norms(task);
    }
  }
}

constexpr int64_t kEntryRun = 128;  // entries of one task
constexpr int64_t kEntryStride = spread_stride<double>(kEntryRun);

/// Transposed values of up to kEntryRun entries in float64, [dv][kEntryStride]; zero beyond.
class TransposedValues {
 public:
  TransposedValues(const Kernels& kernels, const LayerTrace& layer, int64_t kv_head, Range entries)
      : transposed_(layer.value_dim() * kEntryStride) {
    const int64_t dv = layer.value_dim();
    Scratch<float> buffer, narrow(dv * kEntryStride);
    const float* const v = load_rows(layer.v, kv_head, entries.begin, entries.end, dv, buffer);
    if (entries.size() < kEntryRun) std::fill_n(narrow.data(), dv * kEntryStride, 0.0f);
    kernels.transpose(v, entries.size(), dv, dv, narrow.data(), kEntryStride);
    std::copy_n(narrow.data(), dv * kEntryStride, transposed_.data());
  }
  const double* data() const { return transposed_.data(); }

 private:
  Scratch<double> transposed_;
};

/// Calls body(run of entries, its transposed values) for all of `entries`, in parallel.
void for_each_run(const Kernels& kernels, const LayerTrace& layer, int64_t kv_head, Range entries,
                  const std::function<void(Range, const double*)>& body) {
  const int64_t runs = (entries.size() + kEntryRun - 1) / kEntryRun;
  parallel_for(runs, [&](int64_t run) {
    const int64_t begin = entries.begin + run * kEntryRun;
    const Range part{begin, std::min(entries.end, begin + kEntryRun)};
    body(part, TransposedValues(kernels, layer, kv_head, part).data());
  });
}

/// y[rows][dv] as the product kernel wants it: [dv][ld] with ld a multiple of kRowStep.
std::vector<double> transposed(const double* y, int64_t rows, int64_t dv, int64_t ld) {
  std::vector<double> yt(dv * ld, 0.0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < dv; ++c) yt[c * ld + r] = y[r * dv + c];
  return yt;
}

/// v_i G v_i^T of all pairs: sum over r of v_r times (row r of G's lower triangle, the upper one
/// added to it) v, half the work of a whole product.
void value_forms(const Kernels& kernels, const LayerTrace& layer, std::span<const HeadPair> pairs,
                 Range entries) {
  const int64_t dv = layer.value_dim(), ld = padded(dv, kRowStep);
  std::vector<std::vector<double>> lower(pairs.size());  // each [c][r], zero for c > r
  parallel_for(std::ssize(pairs), [&](int64_t pair) {
    const double* const g = pairs[pair].gram;
    std::vector<double>& own = lower[pair];
    own.assign(dv * ld, 0.0);
    for (int64_t r = 0; r < dv; ++r)
      for (int64_t c = 0; c <= r; ++c)
        own[c * ld + r] = c == r ? g[r * dv + r] : g[r * dv + c] + g[c * dv + r];
  });
  const int64_t kv_head = pairs.front().head_a / layer.info->group_size();
  for_each_run(kernels, layer, kv_head, entries, [&](Range part, const double* v) {
    Scratch<double> products(ld * kEntryRun);
    for (size_t pair = 0; pair < pairs.size(); ++pair) {
      for (int64_t r = 0; r < dv; r += kRowStep)
        kernels.multiply64(lower[pair].data() + r, ld, kRowStep, v, kEntryStride,
                           std::min(dv, r + kRowStep), kEntryRun, products.data() + r * kEntryRun,
                           kEntryRun);
      double sums[kEntryRun] = {};
      for (int64_t r = 0; r < dv; ++r)
        for (int64_t i = 0; i < kEntryRun; ++i)
          sums[i] += products.data()[r * kEntryRun + i] * v[r * kEntryStride + i];
      std::copy_n(sums, part.size(), pairs[pair].forms + (part.begin - entries.begin));
    }
  });
}

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

void CpuBackend::value_norms(const LayerTrace& layer, Norm norm, Range entries, float* out) {
  const int64_t dv = layer.value_dim();
  const int64_t runs = (entries.size() + kValueRun - 1) / kValueRun;
  parallel_for(runs * layer.info->num_kv_heads, [&](int64_t task) {
    const int64_t kv_head = task / runs;
    const int64_t begin = entries.begin + task % runs * kValueRun;
    const int64_t end = std::min(entries.end, begin + kValueRun);
    Scratch<float> buffer;
    const float* const v = load_rows(layer.v, kv_head, begin, end, dv, buffer);
    float* const to = out + kv_head * entries.size() + (begin - entries.begin);
    for (int64_t i = 0; i < end - begin; ++i) {
      const double sum = kernels_.row_sum(v + i * dv, dv, norm == Norm::l2);
      to[i] = static_cast<float>(norm == Norm::l2 ? std::sqrt(sum) : sum);
    }
  });
}

void CpuBackend::projected_norms(const LayerTrace& layer, Norm norm, Range entries, float* out) {
  const int64_t dv = layer.value_dim(), group = layer.info->group_size();
  const int64_t run = kTilesPerTask * kTileRows;
  const int64_t runs = (entries.size() + run - 1) / run;
  const bool pairs = norm == Norm::l1 && multiplies_pairs(kernels_, layer.v, layer.wo, dv);
  const OutputFactors factors = norm == Norm::l2 ? OutputFactors(kernels_, layer) : OutputFactors();
  parallel_for(runs * layer.info->num_kv_heads, [&](int64_t task) {
    const int64_t kv_head = task / runs;
    const int64_t begin = entries.begin + task % runs * run;
    const Range part{begin, std::min(entries.end, begin + run)};
    Scratch<float> buffer, w;
    Scratch<float> vt(pairs ? padded(part.size(), kTileRows) * dv / 2 : 0);
    if (pairs) load_value_pairs(kernels_, layer, kv_head, part, vt.data());
    const float* const v = pairs ? vt.data()
                                 : load_rows(layer.v, kv_head, part.begin, part.end, dv, buffer);
    std::vector<double> sums(padded(part.size(), kTileRows));
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      std::fill(sums.begin(), sums.end(), 0.0);
      if (norm == Norm::l1)
        add_projected_l1(kernels_, layer, head, part.size(), pairs, v, w, sums.data());
      else
        factors.add_squares(head, v, part.size(), sums.data());
      float* const to = out + head * entries.size() + (begin - entries.begin);
      for (int64_t i = 0; i < part.size(); ++i) {
        const double sum = sums[i];
        to[i] = static_cast<float>(norm == Norm::l2 ? std::sqrt(std::max(sum, 0.0)) : sum);
      }
    }
  });
}

void CpuBackend::output_metrics(const LayerTrace& layer, std::span<const HeadPair> pairs,
                                Range entries) {
  output_grams(kernels_, layer, pairs);
  value_forms(kernels_, layer, pairs, entries);
}

void CpuBackend::value_products(const LayerTrace& layer, int kv_head, const double* y, int64_t rows,
                                Range entries, double* out) {
  const int64_t dv = layer.value_dim(), ld = padded(rows, kRowStep), columns = entries.size();
  const std::vector<double> yt = transposed(y, rows, dv, ld);
  for_each_run(kernels_, layer, kv_head, entries, [&](Range part, const double* v) {
    double* const to = out + (part.begin - entries.begin);
    // Whole runs of whole steps go where they belong; what is left has no room there.
    const int64_t whole = part.size() == kEntryRun ? rows / kRowStep * kRowStep : 0;
    kernels_.multiply64(yt.data(), ld, whole, v, kEntryStride, dv, kEntryRun, to, columns);
    Scratch<double> products((ld - whole) * kEntryRun);
    kernels_.multiply64(yt.data() + whole, ld, rows - whole, v, kEntryStride, dv, kEntryRun,
                        products.data(), kEntryRun);
    for (int64_t r = whole; r < rows; ++r)
      std::copy_n(products.data() + (r - whole) * kEntryRun, part.size(), to + r * columns);
  });
}

std::unique_ptr<Projection> CpuBackend::projection(const LayerTrace& layer) {
  return std::make_unique<CpuProjection>(kernels_, layer, replay_memory_);
}

}  // namespace kvsim
