#include "sim/backend/cpu/factors.hpp"

#include <algorithm>
#include <cstring>

#include "sim/backend/gram_factor.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

constexpr int64_t kDepthRun = 64;   // columns of W^h that go into the Gram matrix at a time
constexpr int64_t kGramParts = 8;   // of the columns, side by side

/// Columns c.. of W^h transposed in float64, wt[kDepthRun][n].
void load_transposed(const LayerTrace& layer, int64_t head, int64_t c, int64_t columns, int64_t n,
                     std::vector<double>& wt) {
  const int64_t dv = layer.value_dim();
  std::vector<float> w(static_cast<size_t>(dv * kDepthRun));
  load_output_columns(layer, head, c, columns, kDepthRun, w.data());
  wt.resize(static_cast<size_t>(n * kDepthRun));   // zero in the padding, which is never written
  for (int64_t k = 0; k < kDepthRun; ++k)
    for (int64_t i = 0; i < dv; ++i)
      wt[static_cast<size_t>(k * n + i)] =
          static_cast<double>(w[static_cast<size_t>(i * kDepthRun + k)]);
}

}  // namespace

void load_output_columns(const LayerTrace& layer, int64_t head, int64_t c, int64_t columns,
                         int64_t ld, float* out) {
  const Tensor& wo = layer.wo;
  for (int64_t k = 0; k < wo.dim(1); ++k) {
    const std::byte* const raw =
        wo.row(head, k) + static_cast<size_t>(c) * element_size(wo.type());
    widen(wo.type(), raw, columns, out + k * ld);
    std::fill(out + k * ld + columns, out + (k + 1) * ld, 0.0f);
  }
}

std::vector<double> output_gram(const Kernels& kernels, const LayerTrace& layer, int64_t head_a,
                                int64_t head_b) {
  const int64_t width = layer.wo.dim(2), n = padded(layer.value_dim(), kPad);
  // Each part has its own sums, added in order: no result depends on the threads.
  const int64_t part = padded((width + kGramParts - 1) / kGramParts, kDepthRun);
  std::vector<std::vector<double>> sums(static_cast<size_t>((width + part - 1) / part));
  parallel_for(std::ssize(sums), [&](int64_t p) {
    std::vector<double>& g = sums[static_cast<size_t>(p)];
    std::vector<double> a, b;
    g.assign(static_cast<size_t>(n * n), 0.0);
    for (int64_t c = p * part; c < std::min(width, (p + 1) * part); c += kDepthRun) {
      const int64_t columns = std::min(kDepthRun, width - c);
      load_transposed(layer, head_a, c, columns, n, a);
      if (head_b != head_a) load_transposed(layer, head_b, c, columns, n, b);
      kernels.gram(a.data(), head_b == head_a ? a.data() : b.data(), columns, n, g.data());
    }
  });
  for (size_t p = 1; p < sums.size(); ++p)
    for (size_t i = 0; i < sums[p].size(); ++i) sums[0][i] += sums[p][i];
  return std::move(sums[0]);
}

OutputFactors::OutputFactors(const Kernels& kernels, const LayerTrace& layer)
    : kernels_(&kernels), dv_(layer.value_dim()), ld_(padded(dv_, kPad)) {
  const size_t heads = static_cast<size_t>(layer.info->num_query_heads);
  factors_.assign(heads * static_cast<size_t>(dv_ * ld_), 0.0f);
  triangular_.assign(heads, 0);
  parallel_for(layer.info->num_query_heads, [&](int64_t head) { factorise(head, layer); });
}

void OutputFactors::factorise(int64_t head, const LayerTrace& layer) {
  const std::vector<double> whole = output_gram(*kernels_, layer, head, head);
  const int64_t n = padded(dv_, kPad);
  Table<double> gram(dv_, dv_);
  for (int64_t i = 0; i < dv_; ++i) std::copy_n(whole.data() + i * n, dv_, gram.row(i).data());
  const GramFactor factor = factor_of_gram(gram);
  triangular_[static_cast<size_t>(head)] = factor.triangular ? 1 : 0;
  float* const out = factors_.data() + head * dv_ * ld_;
  for (int64_t k = 0; k < dv_; ++k)
    for (int64_t c = 0; c < dv_; ++c) out[k * ld_ + c] = static_cast<float>(factor.r(c, k));
}

void OutputFactors::add_squares(int64_t head, const float* xt, int64_t ld, int64_t rows,
                                double* sums) const {
  NormTask task{};
  task.a = xt;
  task.lda = ld;
  task.rows = rows;
  task.b = factors_.data() + head * dv_ * ld_;
  task.ldb = task.columns = ld_;
  task.depth = dv_;
  task.squares = true;
  task.lower = triangular_[static_cast<size_t>(head)] != 0;   // R is upper: f[k][c] = 0 for c > k
  task.sums = sums;
  kernels_->norms(task);
}

}  // namespace kvsim
