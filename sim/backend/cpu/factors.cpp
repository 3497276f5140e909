#include "sim/backend/cpu/factors.hpp"

namespace kvsim {
namespace {

constexpr int64_t kDepthRun = 128;  // columns of W^h that go into the Gram matrices at a time
constexpr int64_t kGramRows = 48;   // of one task; multiple of kRowStep and kPad

/// Columns c.. of W^h in float64, transposed: wt[columns][ld], zero beyond dv.
void load_transposed(const Kernels& kernels, const LayerTrace& layer, int64_t head, int64_t c,
                     int64_t columns, int64_t ld, double* wt) {
  const int64_t dv = layer.value_dim();
  Scratch<float> rows(dv * kDepthRun), narrow(kDepthRun * ld);
  load_output_columns(layer, head, c, columns, kDepthRun, rows.data());
  std::fill_n(narrow.data(), kDepthRun * ld, 0.0f);
  kernels.transpose(rows.data(), dv, kDepthRun, kDepthRun, narrow.data(), ld);
  std::copy_n(narrow.data(), columns * ld, wt);
}

constexpr int64_t kJointDepth = 128;  // columns of W of one task
constexpr int64_t kJointPanel = JointFactor::kPanel;
constexpr int64_t kJointColumns = 192;  // of one task
constexpr int64_t kLargest = 1536;      // K

/// A = W^T [D][ld], which becomes R: its rows on and right of the diagonal, but for the blocks on
/// the diagonal, which go to the panels of L = R^T at once.
class UpperFactor {
 public:
  UpperFactor(const Kernels& kernels, const LayerTrace& layer, Scratch<float>& memory)
      : kernels_(kernels), layer_(layer), dv_(layer.value_dim()), depth_(layer.wo.dim(2)),
        size_(layer.info->num_query_heads * dv_),
        ld_(spread_stride<float>(padded(size_, kJointPanel))),
        ldv_(padded(padded(depth_, kRowStep), kPad)),  // products take whole groups of rows
        a_(memory.reserve(padded(depth_, kRowStep) * ld_)) {
    for (Reflections& panel : reflections_) {
      panel.v.reserve(kJointPanel * ldv_);
      panel.vt.reserve(kJointPanel * ldv_);
    }
  }

  void load() const {
    const int64_t runs = (depth_ + kJointDepth - 1) / kJointDepth;
    parallel_for(layer_.info->num_query_heads * runs, [&](int64_t task) {
      const int64_t head = task / runs, c = task % runs * kJointDepth;
      const int64_t columns = std::min(kJointDepth, depth_ - c);
      Scratch<float> rows(dv_ * kJointDepth);
      load_output_columns(layer_, head, c, columns, kJointDepth, rows.data());
      kernels_.transpose(rows.data(), dv_, columns, kJointDepth, row(c) + head * dv_, ld_);
    });
    for (int64_t r = 0; r < depth_; ++r) std::fill(row(r) + size_, row(r + 1), 0.0f);
  }

  /// The columns of a panel; `block` takes their block on the diagonal, transposed.
  void factorise(int64_t panel, float* block) {
    Reflections& reflections = of(panel);
    float* const v = reflections.v.data();
    const int64_t count = height(panel), length = depth_ - panel;
    for (int64_t i = 0; i < kJointPanel; ++i)
      std::fill(v + i * ldv_ + (i < count ? length : 0), v + (i + 1) * ldv_, 0.0f);
    kernels_.transpose(row(panel) + panel, length, count, ld_, v, ldv_);
    float tau[kJointPanel] = {};
    std::fill_n(block, count * kJointPanel, 0.0f);
    kernels_.reflect({.x = v,
                      .ld = ldv_,
                      .count = count,
                      .length = length,
                      .tau = tau,
                      .r = block,
                      .ldr = kJointPanel});
    if (panel + kJointPanel >= size_) return;
    kernels_.transpose(v, kJointPanel, length, ldv_, reflections.vt.data(), kJointPanel);
    join(reflections, length, tau);
  }

  /// Takes from the columns behind a panel what they have along it, and factorises the next one,
  /// whose columns come first, beside the rest.
  void go_on(int64_t panel, float* block_of_next) {
    const int64_t next = panel + kJointPanel, end = padded(size_, kPad);
    const int64_t rest = std::min(next + kJointPanel, end);
    parallel_for(1 + (end - rest + kJointColumns - 1) / kJointColumns, [&](int64_t task) {
      const int64_t c = rest + (task - 1) * kJointColumns;
      if (task > 0) return apply(panel, {c, std::min(c + kJointColumns, end)});
      apply(panel, {next, rest});
      factorise(next, block_of_next);
    });
  }

  /// Rows of R behind the block on the diagonal, as columns of L: [K - panel - kJointPanel].
  void copy_to(int64_t panel, float* out) const {
    const int64_t from = panel + kJointPanel;
    if (from < size_)
      kernels_.transpose(row(panel) + from, kJointPanel, size_ - from, ld_, out, kJointPanel);
  }

  int64_t height(int64_t panel) const { return std::min(kJointPanel, size_ - panel); }

 private:
  /// The product of a panel's reflections, 1 - V T V^T.
  struct Reflections {
    Scratch<float> v;                    ///< [kJointPanel][ldv] columns of V
    Scratch<float> vt;                   ///< [D - panel][kJointPanel] its rows
    float t[kJointPanel * kJointPanel];  ///< -T
  };
  float* row(int64_t r) const { return a_ + r * ld_; }
  /// Of one panel, while those of the next are made.
  Reflections& of(int64_t panel) { return reflections_[panel / kJointPanel % 2]; }
  /// -T, upper triangular, column by column (LAPACK's larft).
  void join(Reflections& reflections, int64_t length, const float* tau) const {
    float products[kJointPanel * kJointPanel];
    const float* const vt = reflections.vt.data();
    kernels_.multiply(vt, kJointPanel, kJointPanel, vt, kJointPanel, length, kJointPanel, products,
                      kJointPanel);
    float* const t = reflections.t;
    std::fill_n(t, kJointPanel * kJointPanel, 0.0f);
    for (int64_t c = 0; c < kJointPanel; ++c) {
      for (int64_t k = 0; k < c; ++k) {
        const float factor = tau[c] * products[k * kJointPanel + c];
        for (int64_t r = 0; r <= k; ++r) t[r * kJointPanel + c] -= factor * t[r * kJointPanel + k];
      }
      t[c * kJointPanel + c] = -tau[c];
    }
  }

  void apply(int64_t panel, Range columns) {
    const Reflections& reflections = of(panel);
    const int64_t length = depth_ - panel, count = columns.size();
    float* const a = row(panel) + columns.begin;
    Scratch<float> along(2 * kJointPanel * kJointColumns);
    float* const taken = along.data() + kJointPanel * kJointColumns;
    kernels_.multiply(reflections.vt.data(), kJointPanel, kJointPanel, a, ld_, length, count,
                      along.data(), kJointColumns);
    kernels_.multiply(reflections.t, kJointPanel, kJointPanel, along.data(), kJointColumns,
                      kJointPanel, count, taken, kJointColumns);
    kernels_.add_multiply(reflections.v.data(), ldv_, length, taken, kJointColumns, kJointPanel,
                          count, a, ld_);
  }

  const Kernels& kernels_;
  const LayerTrace& layer_;
  int64_t dv_, depth_, size_, ld_, ldv_;
  float* a_;
  Reflections reflections_[2];
};

}  // namespace

void load_output_columns(const LayerTrace& layer, int64_t head, int64_t c, int64_t columns,
                         int64_t ld, float* out) {
  const Tensor& wo = layer.wo;
  for (int64_t k = 0; k < wo.dim(1); ++k) {
    const std::byte* const raw = wo.row(head, k) + static_cast<size_t>(c) * element_size(wo.type());
    widen(wo.type(), raw, columns, out + k * ld);
    std::fill(out + k * ld + columns, out + (k + 1) * ld, 0.0f);
  }
}

std::vector<const float*> row_places(const float* x, int64_t rows, int64_t width) {
  std::vector<const float*> places(padded(rows, kPlaceStep));
  for (int64_t r = 0; r < std::ssize(places); ++r) places[r] = x + std::min(r, rows - 1) * width;
  return places;
}

void output_grams(const Kernels& kernels, const LayerTrace& layer,
                  std::span<const HeadPair> pairs) {
  const int64_t dv = layer.value_dim(), width = layer.wo.dim(2), n = padded(dv, kPad);
  const int64_t ld = padded(n, kRowStep) + 8;  // no power of two: columns are walked
  const int64_t blocks = (n + kGramRows - 1) / kGramRows;
  std::vector<int> heads;
  for (const HeadPair& pair : pairs) heads.insert(heads.end(), {pair.head_a, pair.head_b});
  std::ranges::sort(heads);
  heads.erase(std::ranges::unique(heads).begin(), heads.end());
  Scratch<double> loaded(std::ssize(heads) * kDepthRun * ld);
  const auto of_head = [&](int head) {
    return loaded.data() + (std::ranges::find(heads, head) - heads.begin()) * kDepthRun * ld;
  };
  std::vector<std::vector<double>> sums(pairs.size(), std::vector<double>(n * n, 0.0));
  for (int64_t c = 0; c < width; c += kDepthRun) {
    const int64_t columns = std::min(kDepthRun, width - c);
    parallel_for(std::ssize(heads), [&](int64_t at) {
      const int head = heads[at];
      load_transposed(kernels, layer, head, c, columns, ld, of_head(head));
    });
    parallel_for(std::ssize(pairs) * blocks, [&](int64_t task) {
      const auto number = static_cast<size_t>(task / blocks);
      const HeadPair& pair = pairs[number];
      const int64_t first = task % blocks * kGramRows, height = std::min(kGramRows, n - first);
      const int64_t wide = pair.head_a == pair.head_b ? first + height : n;  // symmetric
      Scratch<double> product(kGramRows * n);
      kernels.multiply64(of_head(pair.head_a) + first, ld, height, of_head(pair.head_b), ld,
                         columns, wide, product.data(), n);
      for (int64_t r = 0; r < height; ++r)
        for (int64_t j = 0; j < wide; ++j)
          sums[number][(first + r) * n + j] += product.data()[r * n + j];
    });
  }
  for (size_t p = 0; p < pairs.size(); ++p)
    for (int64_t i = 0; i < dv; ++i)
      for (int64_t j = 0; j < dv; ++j) {
        const bool mirrored = pairs[p].head_a == pairs[p].head_b && j > i;
        pairs[p].gram[i * dv + j] = sums[p][mirrored ? j * n + i : i * n + j];
      }
}

bool JointFactor::pays(const LayerTrace& layer) {
  // A run of usual size projects at least (default_wo_steps): the full cache and eight
  // policies at five budgets, at all steps that cost so little.
  constexpr double kSets = 41, kFreeFlops = 1e10;
  constexpr double kCost = 1.7;  // of the factor's flop by those of the projection, measured
  const int64_t size = layer.info->num_query_heads * layer.value_dim();
  if (size > kLargest || size > layer.wo.dim(2)) return false;
  const auto k = static_cast<double>(size), width = static_cast<double>(layer.wo.dim(2));
  const double steps = std::min(static_cast<double>(layer.info->steps()),
                                kFreeFlops / (2 * kSets * k * width));
  const double columns = (k + static_cast<double>(layer.value_dim())) / 2;
  const double saved = 2 * kSets * steps * k * (width - columns);
  return saved > kCost * (2 * k * k * width - 2 * k * k * k / 3);
}

void JointFactor::make(const Kernels& kernels, const LayerTrace& layer, Scratch<float>& memory) {
  UpperFactor upper(kernels, layer, memory);
  upper.load();
  width_ = layer.info->num_query_heads * layer.value_dim();
  float* const panels = panels_.reserve(before(width_, padded(width_, kPanel)));
  const auto place = [&](int64_t panel) { return panels + before(width_, panel); };
  upper.factorise(0, place(0));
  for (int64_t panel = 0; panel + kPanel < width_; panel += kPanel)
    upper.go_on(panel, place(panel + kPanel));
  parallel_for((width_ + kPanel - 1) / kPanel, [&](int64_t number) {
    upper.copy_to(number * kPanel, place(number * kPanel) + kPanel * kPanel);
  });
}

}  // namespace kvsim
