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

constexpr int64_t kEntryRun = 128;   // entries of one task

/// Transposed values of up to kEntryRun entries in float64, [dv][kEntryRun]; zero beyond.
class TransposedValues {
 public:
  TransposedValues(const Kernels& kernels, const LayerTrace& layer, int64_t kv_head, Range entries)
      : transposed_(layer.value_dim() * kEntryRun) {
    const int64_t dv = layer.value_dim();
    Scratch<float> buffer, narrow(dv * kEntryRun);
    const float* const v = load_rows(layer.v, kv_head, entries.begin, entries.end, dv, buffer);
    if (entries.size() < kEntryRun) std::fill_n(narrow.data(), dv * kEntryRun, 0.0f);
    kernels.transpose(v, entries.size(), dv, dv, narrow.data(), kEntryRun);
    std::copy_n(narrow.data(), dv * kEntryRun, transposed_.data());
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

}  // namespace

void cpu_output_gram(const Kernels& kernels, const LayerTrace& layer, int head_a, int head_b,
                     double* g) {
  const int64_t dv = layer.value_dim(), ld = padded(dv, kPad);
  const std::vector<double> whole = output_gram(kernels, layer, head_a, head_b);
  for (int64_t r = 0; r < dv; ++r) std::copy_n(whole.data() + r * ld, dv, g + r * dv);
}

void cpu_value_products(const Kernels& kernels, const LayerTrace& layer, int kv_head,
                        const double* y, int64_t rows, Range entries, double* out) {
  const int64_t dv = layer.value_dim(), ld = padded(rows, kRowStep);
  const std::vector<double> yt = transposed(y, rows, dv, ld);
  for_each_run(kernels, layer, kv_head, entries, [&](Range part, const double* v) {
    Scratch<double> products(ld * kEntryRun);
    kernels.multiply64(yt.data(), ld, rows, v, kEntryRun, dv, kEntryRun, products.data(),
                       kEntryRun);
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(products.data() + r * kEntryRun, part.size(),
                  out + r * entries.size() + (part.begin - entries.begin));
  });
}

void cpu_value_forms(const Kernels& kernels, const LayerTrace& layer, int kv_head, const double* g,
                     Range entries, double* out) {
  const int64_t dv = layer.value_dim(), ld = padded(dv, kRowStep);
  // Sum over r of v_r times (row r of G's lower triangle, the upper one added to it) v: half the
  // work of a whole product.
  std::vector<double> lower(static_cast<size_t>(dv * ld), 0.0);   // [c][r], zero for c > r
  for (int64_t r = 0; r < dv; ++r)
    for (int64_t c = 0; c <= r; ++c)
      lower[static_cast<size_t>(c * ld + r)] =
          c == r ? g[r * dv + r] : g[r * dv + c] + g[c * dv + r];
  for_each_run(kernels, layer, kv_head, entries, [&](Range part, const double* v) {
    Scratch<double> products(ld * kEntryRun);
    for (int64_t r = 0; r < dv; r += kRowStep)
      kernels.multiply64(lower.data() + r, ld, kRowStep, v, kEntryRun, std::min(dv, r + kRowStep),
                         kEntryRun, products.data() + r * kEntryRun, kEntryRun);
    double sums[kEntryRun] = {};
    for (int64_t r = 0; r < dv; ++r)
      for (int64_t i = 0; i < kEntryRun; ++i)
        sums[i] += products.data()[r * kEntryRun + i] * v[r * kEntryRun + i];
    std::copy_n(sums, part.size(), out + (part.begin - entries.begin));
  });
}

}  // namespace kvsim
