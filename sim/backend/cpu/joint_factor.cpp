// The Cholesky factor of W_O's Gram matrix over all heads, by blocks of the product kernel.
#include "sim/backend/cpu/joint_factor.hpp"

#include <algorithm>
#include <cmath>

#include "sim/backend/cpu/factors.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

constexpr int64_t kJointDepth = 128;  // columns of W that go into the Gram matrix at a time
constexpr int64_t kJointPanel = JointFactor::kPanel;  // rows that are factorised together
constexpr int64_t kJointColumns = 192;                // columns of one task
constexpr int64_t kLargest = 1536;                    // K: 18 MB of float64
constexpr double kSmallestPivot = 1e-6;

/// U [K][ld] in float64, its upper triangle: first the Gram matrix, then its factor.
class UpperFactor {
 public:
  UpperFactor(const Kernels& kernels, const LayerTrace& layer, Scratch<float>& memory)
      : kernels_(kernels), layer_(layer), dv_(layer.value_dim()),
        size_(layer.info->num_query_heads * dv_),
        ld_(spread_stride<double>(padded(size_, kJointPanel))),
        u_(reinterpret_cast<double*>(memory.reserve(2 * padded(size_, kJointPanel) * ld_))) {}

  void take_gram();
  bool factorise();
  /// `height` of its rows, from `panel` on, as columns of L: [K - panel][kJointPanel].
  void copy_to(int64_t panel, float* out) const;
  int64_t height(int64_t panel) const { return std::min(kJointPanel, size_ - panel); }

 private:
  double* row(int64_t r) const { return u_ + r * ld_; }
  void load_columns(int64_t c, int64_t columns, double* wt) const;
  void add_to_gram(int64_t first, const double* wt, int64_t columns) const;
  void subtract_known(int64_t panel, int64_t c, int64_t columns, const double* above) const;
  bool factorise_block(int64_t panel, double* inverse, double& largest) const;
  void solve(int64_t panel, int64_t c, int64_t columns, const double* inverse) const;
  template <class Body>
  void over_columns(int64_t from, const Body& body) const {
    const int64_t all = padded(size_, kPad) - from;
    parallel_for((all + kJointColumns - 1) / kJointColumns, [&](int64_t run) {
      const int64_t c = from + run * kJointColumns;
      body(c, std::min(kJointColumns, from + all - c));
    });
  }

  const Kernels& kernels_;
  const LayerTrace& layer_;
  int64_t dv_, size_, ld_;
  double* u_;
};

/// Columns c.. of W in float64, transposed: wt[columns][ld], zero beyond K.
void UpperFactor::load_columns(int64_t c, int64_t columns, double* wt) const {
  parallel_for(layer_.info->num_query_heads, [&](int64_t head) {
    Scratch<float> rows(dv_ * kJointDepth), narrow(kJointDepth * dv_);
    load_output_columns(layer_, head, c, columns, kJointDepth, rows.data());
    kernels_.transpose(rows.data(), dv_, kJointDepth, kJointDepth, narrow.data(), dv_);
    for (int64_t j = 0; j < columns; ++j)
      std::copy_n(narrow.data() + j * dv_, dv_, wt + j * ld_ + head * dv_);
  });
  for (int64_t j = 0; j < columns; ++j) std::fill(wt + j * ld_ + size_, wt + (j + 1) * ld_, 0.0);
}

/// Adds the products of some columns of W to the panel that starts at row `first`.
void UpperFactor::add_to_gram(int64_t first, const double* wt, int64_t columns) const {
  const int64_t width = padded(size_, kPad) - first;
  kernels_.add_multiply64(wt + first, ld_, height(first), wt + first, ld_, columns, width,
                          row(first) + first, ld_);
}

void UpperFactor::take_gram() {
  const int64_t width = layer_.wo.dim(2);
  Scratch<double> wt(kJointDepth * ld_);
  for (int64_t c = 0; c < width; c += kJointDepth) {
    const int64_t columns = std::min(kJointDepth, width - c);
    load_columns(c, columns, wt.data());
    parallel_for((size_ + kJointPanel - 1) / kJointPanel, [&](int64_t panel) {
      const int64_t first = panel * kJointPanel;
      for (int64_t r = first; r < first + kJointPanel && c == 0; ++r)
        std::fill(row(r) + first, row(r) + ld_, 0.0);
      add_to_gram(first, wt.data(), columns);
    });
  }
}

/// Takes from columns c.. of a panel what the rows above it explain; above[panel][kJointPanel] are
/// those rows there, negative.
void UpperFactor::subtract_known(int64_t panel, int64_t c, int64_t columns,
                                 const double* above) const {
  kernels_.add_multiply64(above, kJointPanel, height(panel), u_ + c, ld_, panel, columns,
                          row(panel) + c, ld_);
}

/// Factorises the block on the diagonal; inverse[k][r] = (U_pp^T)^-1 [r][k], zero for k > r. False
/// where a pivot is tiny against the largest: rounding, not W, would decide it.
bool UpperFactor::factorise_block(int64_t panel, double* inverse, double& largest) const {
  const int64_t size = height(panel);
  const auto at = [&](int64_t r, int64_t c) -> double& { return row(panel + r)[panel + c]; };
  for (int64_t r = 0; r < size; ++r) {
    for (int64_t k = 0; k < r; ++k)
      for (int64_t c = r; c < size; ++c) at(r, c) -= at(k, r) * at(k, c);
    const double pivot = std::sqrt(at(r, r));
    largest = std::max(largest, pivot);
    if (!(pivot > kSmallestPivot * largest)) return false;
    for (int64_t c = r; c < size; ++c) at(r, c) /= pivot;
    std::fill_n(row(panel + r) + panel, r, 0.0);
  }
  std::fill_n(inverse, kJointPanel * kJointPanel, 0.0);
  for (int64_t k = 0; k < size; ++k) {  // forward substitution of the k-th unit vector
    double* const x = inverse + k * kJointPanel;
    x[k] = 1;
    for (int64_t s = k; s < size; ++s) {
      x[s] /= at(s, s);
      for (int64_t r = s + 1; r < size; ++r) x[r] -= at(s, r) * x[s];
    }
  }
  return true;
}

void UpperFactor::solve(int64_t panel, int64_t c, int64_t columns, const double* inverse) const {
  Scratch<double> product(kJointPanel * columns);
  kernels_.multiply64(inverse, kJointPanel, kJointPanel, row(panel) + c, ld_, kJointPanel, columns,
                      product.data(), columns);
  for (int64_t r = 0; r < kJointPanel; ++r)
    std::copy_n(product.data() + r * columns, columns, row(panel + r) + c);
}

bool UpperFactor::factorise() {
  Scratch<double> inverse(kJointPanel * kJointPanel), above(size_ * kJointPanel);
  double largest = 0;
  for (int64_t panel = 0; panel < size_; panel += kJointPanel) {
    parallel_for(panel / kJointPanel, [&](int64_t block) {
      for (int64_t k = block * kJointPanel; k < (block + 1) * kJointPanel; ++k)
        for (int64_t r = 0; r < kJointPanel; ++r)
          above.data()[k * kJointPanel + r] = -row(k)[panel + r];
    });
    if (panel > 0)
      over_columns(panel, [&](int64_t c, int64_t columns) {
        subtract_known(panel, c, columns, above.data());
      });
    if (!factorise_block(panel, inverse.data(), largest)) return false;
    if (panel + kJointPanel < size_)
      over_columns(panel + kJointPanel,
                   [&](int64_t c, int64_t columns) { solve(panel, c, columns, inverse.data()); });
  }
  return true;
}

void UpperFactor::copy_to(int64_t panel, float* out) const {
  const int64_t width = size_ - panel;
  Scratch<float> rows(kJointPanel * width);
  for (int64_t r = 0; r < height(panel); ++r)
    std::copy_n(row(panel + r) + panel, width, rows.data() + r * width);
  if (height(panel) < kJointPanel) std::fill_n(out, width * kJointPanel, 0.0f);
  kernels_.transpose(rows.data(), height(panel), width, width, out, kJointPanel);
}

}  // namespace

bool JointFactor::pays(const LayerTrace& layer) {
  // What a run of usual size projects at least (default_wo_steps): the full cache and eight
  // policies at five budgets, at all steps that cost so little.
  constexpr double kSets = 41, kFreeFlops = 1e10;
  constexpr double kFloat64 = 3;  // what its flop cost by those of float32, with how they are cut
  const int64_t size = layer.info->num_query_heads * layer.value_dim();
  if (size > kLargest || size > layer.wo.dim(2)) return false;
  const auto k = static_cast<double>(size), width = static_cast<double>(layer.wo.dim(2));
  const double steps = std::min(static_cast<double>(layer.info->steps()),
                                kFreeFlops / (2 * kSets * k * width));
  const double columns = (k + static_cast<double>(layer.value_dim())) / 2;
  const double saved = 2 * kSets * steps * k * (width - columns);
  return saved > kFloat64 * (k * k * width + k * k * k / 3);
}

bool JointFactor::make(const Kernels& kernels, const LayerTrace& layer, Scratch<float>& memory) {
  UpperFactor upper(kernels, layer, memory);
  upper.take_gram();
  if (!upper.factorise()) return false;
  width_ = layer.info->num_query_heads * layer.value_dim();
  const int64_t count = (width_ + kPanel - 1) / kPanel;
  float* const panels = panels_.reserve(before(width_, count * kPanel));
  parallel_for(count, [&](int64_t number) {
    upper.copy_to(number * kPanel, panels + before(width_, number * kPanel));
  });
  return true;
}

}  // namespace kvsim
