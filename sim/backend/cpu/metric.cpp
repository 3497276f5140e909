// Inner products of values in the metric of the output projection, in float64: differences of
// outputs are taken between them, and cancel.
#include <algorithm>
#include <functional>
#include <vector>

#include "sim/backend/cpu/factors.hpp"
#include "sim/backend/cpu/loader.hpp"
#include "sim/backend/cpu/verbs.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

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
  std::vector<double> yt(static_cast<size_t>(dv * ld), 0.0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < dv; ++c) yt[static_cast<size_t>(c * ld + r)] = y[r * dv + c];
  return yt;
}

/// v_i G v_i^T of all pairs: sum over r of v_r times (row r of G's lower triangle, the upper one
/// added to it) v, half the work of a whole product.
void value_forms(const Kernels& kernels, const LayerTrace& layer, std::span<const HeadPair> pairs,
                 Range entries) {
  const int64_t dv = layer.value_dim(), ld = padded(dv, kRowStep);
  std::vector<std::vector<double>> lower(pairs.size());  // each [c][r], zero for c > r
  parallel_for(std::ssize(pairs), [&](int64_t pair) {
    const double* const g = pairs[static_cast<size_t>(pair)].gram;
    std::vector<double>& own = lower[static_cast<size_t>(pair)];
    own.assign(static_cast<size_t>(dv * ld), 0.0);
    for (int64_t r = 0; r < dv; ++r)
      for (int64_t c = 0; c <= r; ++c)
        own[static_cast<size_t>(c * ld + r)] = c == r ? g[r * dv + r]
                                                      : g[r * dv + c] + g[c * dv + r];
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

void cpu_output_metrics(const Kernels& kernels, const LayerTrace& layer,
                        std::span<const HeadPair> pairs, Range entries) {
  output_grams(kernels, layer, pairs);
  value_forms(kernels, layer, pairs, entries);
}

void cpu_value_products(const Kernels& kernels, const LayerTrace& layer, int kv_head,
                        const double* y, int64_t rows, Range entries, double* out) {
  const int64_t dv = layer.value_dim(), ld = padded(rows, kRowStep), columns = entries.size();
  const std::vector<double> yt = transposed(y, rows, dv, ld);
  for_each_run(kernels, layer, kv_head, entries, [&](Range part, const double* v) {
    double* const to = out + (part.begin - entries.begin);
    // Whole runs of whole steps go where they belong; what is left has no room there.
    const int64_t whole = part.size() == kEntryRun ? rows / kRowStep * kRowStep : 0;
    kernels.multiply64(yt.data(), ld, whole, v, kEntryStride, dv, kEntryRun, to, columns);
    Scratch<double> products((ld - whole) * kEntryRun);
    kernels.multiply64(yt.data() + whole, ld, rows - whole, v, kEntryStride, dv, kEntryRun,
                       products.data(), kEntryRun);
    for (int64_t r = whole; r < rows; ++r)
      std::copy_n(products.data() + (r - whole) * kEntryRun, part.size(), to + r * columns);
  });
}

}  // namespace kvsim
