#pragma once
#include "sim/backend/cpu/kernels.hpp"
#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {

/// Columns c..c+columns-1 of W^h in float32: out[dv][ld], zero beyond the columns.
void load_output_columns(const LayerTrace& layer, int64_t head, int64_t c, int64_t columns,
                         int64_t ld, float* out);

/// Where rows of `width` numbers lie that follow one another; the last again up to a multiple of
/// kPlaceStep, as NormTask reads them.
std::vector<const float*> row_places(const float* x, int64_t rows, int64_t width);

/// Fills the Gram matrices of pairs of query heads of one group.
void output_grams(const Kernels& kernels, const LayerTrace& layer, std::span<const HeadPair> pairs);

/// For every query head a triangular R with R^T R = G = W^h (W^h)^T, so that |x W^h| = |R x|: D/dv
/// times cheaper than the product. Gram matrix and Cholesky factor are taken in float64. A head
/// whose G is not numerically positive definite (fewer columns than rows, equal rows) uses the
/// square root of the eigendecomposition, which is no triangle but needs no positive eigenvalue.
class OutputFactors {
 public:
  OutputFactors() = default;
  OutputFactors(const Kernels& kernels, const LayerTrace& layer)
      : kernels_(&kernels), dv_(layer.value_dim()), ld_(padded(dv_, kPad)) {
    const size_t heads = layer.info->num_query_heads;
    factors_.assign(heads * static_cast<size_t>(dv_ * ld_), 0.0f);
    triangular_.assign(heads, 0);
    parallel_for(layer.info->num_query_heads, [&](int64_t head) { factorise(head, layer); });
  }

  /// sums[r] += |x_r W^h|_2^2 for the rows x[rows][dv].
  void add_squares(int64_t head, const float* x, int64_t rows, double* sums) const {
    const std::vector<const float*> places = row_places(x, rows, dv_);
    NormTask task{};
    task.x = places.data();
    task.part = dv_;
    task.rows = rows;
    task.b = factors_.data() + head * dv_ * ld_;
    task.ldb = task.columns = ld_;
    task.depth = dv_;
    task.squares = true;
    task.lower = triangular_[head] != 0;  // R is upper: f[k][c] = 0 for c > k
    task.sums = sums;
    kernels_->norms(task);
  }

 private:
  void factorise(int64_t head, const LayerTrace& layer) {
    Table<double> gram(dv_, dv_);
    const HeadPair itself{static_cast<int>(head), static_cast<int>(head), gram.data(), nullptr};
    output_grams(*kernels_, layer, {&itself, 1});
    const GramFactor factor = factor_of_gram(gram);
    triangular_[head] = factor.triangular ? 1 : 0;
    float* const out = factors_.data() + head * dv_ * ld_;
    for (int64_t k = 0; k < dv_; ++k)
      for (int64_t c = 0; c < dv_; ++c) out[k * ld_ + c] = static_cast<float>(factor.r(c, k));
  }

  const Kernels* kernels_ = nullptr;
  int64_t dv_ = 0;
  int64_t ld_ = 0;                   ///< dv padded to whole vectors
  std::vector<float> factors_;       ///< [Hq][dv][ld], transposed: y_c = sum_k f[k][c] x_k
  std::vector<uint8_t> triangular_;  ///< [Hq]
};

/// A triangle L [K][K] for all heads together, K = Hq * dv, with L L^T = W W^T, so that
/// |sum_h x_h W^h| = |x L|: at most half the products, since L has no columns beyond its diagonal.
/// It is R^T of W^T = Q R, by Householder's reflections in float32: that is the triangle of a
/// matrix beside W^T by a few roundings of its columns (Higham, Accuracy and Stability, 19.4),
/// whatever its rank.
class JointFactor {
 public:
  /// Whether the factor costs less than it saves in a run of usual size. It asks the trace's shapes
  /// alone, so that no result depends on how many policies a run has.
  static bool pays(const LayerTrace& layer);

  /// `memory` is used meanwhile.
  void make(const Kernels& kernels, const LayerTrace& layer, Scratch<float>& memory);

  /// Columns of a panel.
  static constexpr int64_t kPanel = 48;
  /// Columns c.. of rows c..K-1, c a multiple of kPanel: [K - c][kPanel], zero above the diagonal
  /// and beyond column K-1. Rows above have nothing there.
  const float* panel(int64_t c) const { return panels_.data() + before(width_, c); }
  int64_t width() const { return width_; }  ///< K

 private:
  /// Numbers in the panels before that of column c.
  static int64_t before(int64_t size, int64_t c) { return c * size - c * (c - kPanel) / 2; }

  Scratch<float> panels_;
  int64_t width_ = 0;
};

}  // namespace kvsim
