// Norms of values, alone and after the output projection.

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

}  // namespace kvsim
