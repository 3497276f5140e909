#include "sim/backend/cpu/factors.hpp"

#include <algorithm>
#include <cstring>

#include "sim/backend/gram_factor.hpp"
#include "sim/core/parallel.hpp"

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
  std::vector<const float*> places(static_cast<size_t>(padded(rows, kPlaceStep)));
  for (size_t r = 0; r < places.size(); ++r)
    places[r] = x + std::min(static_cast<int64_t>(r), rows - 1) * width;
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
  std::vector<std::vector<double>> sums(pairs.size(),
                                        std::vector<double>(static_cast<size_t>(n * n), 0.0));
  for (int64_t c = 0; c < width; c += kDepthRun) {
    const int64_t columns = std::min(kDepthRun, width - c);
    parallel_for(std::ssize(heads), [&](int64_t at) {
      const int head = heads[static_cast<size_t>(at)];
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
          sums[number][static_cast<size_t>((first + r) * n + j)] += product.data()[r * n + j];
    });
  }
  for (size_t p = 0; p < pairs.size(); ++p)
    for (int64_t i = 0; i < dv; ++i)
      for (int64_t j = 0; j < dv; ++j) {
        const bool mirrored = pairs[p].head_a == pairs[p].head_b && j > i;
        pairs[p].gram[i * dv + j] = sums[p][static_cast<size_t>(mirrored ? j * n + i : i * n + j)];
      }
}

OutputFactors::OutputFactors(const Kernels& kernels, const LayerTrace& layer)
    : kernels_(&kernels), dv_(layer.value_dim()), ld_(padded(dv_, kPad)) {
  const size_t heads = static_cast<size_t>(layer.info->num_query_heads);
  factors_.assign(heads * static_cast<size_t>(dv_ * ld_), 0.0f);
  triangular_.assign(heads, 0);
  parallel_for(layer.info->num_query_heads, [&](int64_t head) { factorise(head, layer); });
}

void OutputFactors::factorise(int64_t head, const LayerTrace& layer) {
  Table<double> gram(dv_, dv_);
  const HeadPair itself{static_cast<int>(head), static_cast<int>(head), gram.data(), nullptr};
  output_grams(*kernels_, layer, {&itself, 1});
  const GramFactor factor = factor_of_gram(gram);
  triangular_[static_cast<size_t>(head)] = factor.triangular ? 1 : 0;
  float* const out = factors_.data() + head * dv_ * ld_;
  for (int64_t k = 0; k < dv_; ++k)
    for (int64_t c = 0; c < dv_; ++c) out[k * ld_ + c] = static_cast<float>(factor.r(c, k));
}

void OutputFactors::add_squares(int64_t head, const float* x, int64_t rows, double* sums) const {
  const std::vector<const float*> places = row_places(x, rows, dv_);
  NormTask task{};
  task.x = places.data();
  task.part = dv_;
  task.rows = rows;
  task.b = factors_.data() + head * dv_ * ld_;
  task.ldb = task.columns = ld_;
  task.depth = dv_;
  task.squares = true;
  task.lower = triangular_[static_cast<size_t>(head)] != 0;  // R is upper: f[k][c] = 0 for c > k
  task.sums = sums;
  kernels_->norms(task);
}

}  // namespace kvsim
