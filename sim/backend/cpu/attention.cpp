// Rows of full-cache attention. A tile is up to 96 rows of the query group; keys go by in blocks
// whose float32 transpose stays in the second-level cache, so scores come out row-major, as the
// result is stored. The shift under the exponential of a row is raised lazily and remembered per
// block; one last pass brings all blocks to the same shift and divides by the sum.

#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {
namespace {

constexpr int64_t kKeyBlock = 256;
constexpr int64_t kKeyStride = spread_stride<float>(kKeyBlock);
constexpr int64_t kLeastRows = 16;  // of a tile, where one tile would take all rows

/// Visible keys of a row: positions begin..end-1.
Range visible_keys(const LayerTrace& layer, int64_t position) {
  const int64_t window = layer.sliding_window;
  return {window > 0 ? std::max<int64_t>(0, position - window + 1) : 0, position + 1};
}

/// Works on one tile at a time; memory is used again by the next tile of the same thread.
class AttentionTile {
 public:
  AttentionTile(const Kernels& kernels, const LayerTrace& layer, const AttentionRequest& request,
                AttentionBlock& block)
      : kernels_(kernels), layer_(layer), request_(request), block_(block),
        operands_(kernels, layer) {}

  /// Rows first..first+count-1 of the block seen as [heads * rows].
  void run(int64_t first, int64_t count) {
    start(first, count);
    for (int64_t key = keys_.begin; key < keys_.end; key += kKeyBlock)
      score(key, std::min(kKeyBlock, keys_.end - key));
    for (int64_t r = 0; r < rows_; ++r) finish_row(r);
    if (request_.outputs) outputs();
  }

 private:
  struct Row {
    int64_t index = 0;  ///< of the block's [heads * rows]
    Range visible;
    float shift = 0;
    bool seen = false;
    double sum = 0;  ///< of exp(logit - shift) over the visible keys so far
  };

  void start(int64_t first, int64_t count) {
    rows_ = count;
    ld_ = padded(padded(count, kRowStep), kPad);
    const int64_t d = operands_.depth();
    std::vector<QueryRow> queries;
    row_.assign(count, Row{});
    keys_ = {std::numeric_limits<int64_t>::max(), 0};
    for (int64_t r = 0; r < count; ++r) {
      Row& row = row_[r];
      row.index = first + r;
      const int64_t at = row.index % block_.rows;
      queries.push_back(
          {block_.kv_head * block_.heads + row.index / block_.rows, request_.rows[at]});
      row.visible = visible_keys(layer_, block_.positions[at]);
      keys_.begin = std::min(keys_.begin, row.visible.begin);
      keys_.end = std::max(keys_.end, row.visible.end);
    }
    keys_.begin = keys_.begin / kKeyBlock * kKeyBlock;
    operands_.load_queries(queries, ld_, queries_.reserve(d * ld_));
    const int64_t blocks = (keys_.end - keys_.begin + kKeyBlock - 1) / kKeyBlock;
    shifts_.assign(count * blocks, 0.0f);
    scores_.reserve(ld_ * kKeyBlock);
    transposed_.reserve(d * kKeyStride);
  }

  void score(int64_t key, int64_t count) {
    const int64_t d = operands_.depth();
    const float* const k = operands_.load_keys(block_.kv_head, key, key + count, keys_buffer_);
    const int64_t columns = padded(count, kPad);
    if (columns > count) std::fill_n(transposed_.data(), d * kKeyStride, 0.0f);
    kernels_.transpose(k, count, d, d, transposed_.data(), kKeyStride);
    const auto multiply = operands_.pairs() ? kernels_.multiply_pairs : kernels_.multiply;
    multiply(queries_.data(), ld_, rows_, transposed_.data(), kKeyStride, d, columns,
             scores_.data(), kKeyBlock);
    for (int64_t r = 0; r < rows_; ++r) {
      Row& row = row_[r];
      const int64_t begin = std::max(key, row.visible.begin);
      const int64_t end = std::min(key + count, row.visible.end);
      if (begin < end) block_row(row, r, key, {begin, end});
      shift_of(r, key) = row.shift;
    }
  }

  /// The visible part of one row in one block of keys.
  void block_row(Row& row, int64_t r, int64_t key, Range part) {
    float* const s = scores_.data() + r * kKeyBlock + (part.begin - key);
    if (operands_.pairs()) kernels_.scale_row(s, part.size(), operands_.scale());
    if (layer_.softcap > 0) kernels_.softcap(s, part.size(), static_cast<float>(layer_.softcap));
    const int64_t stored = std::min(part.end, block_.columns) - part.begin;
    if (request_.logits && stored > 0)
      std::copy_n(s, stored, block_.logits.data() + row.index * block_.columns + part.begin);
    const float top = kernels_.maximum(s, part.size());
    if (!row.seen || top > row.shift + kSlack) {
      if (row.seen) row.sum *= std::exp(static_cast<double>(row.shift) - static_cast<double>(top));
      row.shift = top;
      row.seen = true;
    }
    float* const a = block_.attention.data() + row.index * block_.columns + part.begin;
    row.sum += kernels_.exp_row(s, part.size(), row.shift, stored == part.size() ? a : s);
    if (stored > 0 && stored < part.size()) std::copy_n(s, stored, a);
  }

  void finish_row(int64_t r) {
    const Row& row = row_[r];
    const int64_t head = block_.kv_head * block_.heads + row.index / block_.rows;
    double total = row.sum;
    const double shift = static_cast<double>(row.shift);
    const double sink = sink_logit(layer_, head);
    total += sink_mass(sink, shift);
    block_.log_sum_exp[row.index] = log_sum_with_sink(shift, total, sink);
    const Range visible{std::min(row.visible.begin, block_.columns),
                        std::min(row.visible.end, block_.columns)};
    float* const a = block_.attention.data() + row.index * block_.columns;
    std::fill(a, a + visible.begin, 0.0f);
    std::fill(a + visible.end, a + block_.columns, 0.0f);
    for (int64_t key = keys_.begin; key < visible.end; key += kKeyBlock) {
      const int64_t begin = std::max(key, visible.begin);
      const int64_t end = std::min(key + kKeyBlock, visible.end);
      if (begin >= end) continue;
      const double factor = std::exp(static_cast<double>(shift_of(r, key)) - shift) / total;
      kernels_.scale_row(a + begin, end - begin, static_cast<float>(factor));
    }
  }

  float& shift_of(int64_t r, int64_t key) {
    return shifts_[(key - keys_.begin) / kKeyBlock * rows_ + r];
  }

  /// z of the tile's rows: scores once more, key-major, with the final shift.
  void outputs() {
    const int64_t dv = layer_.value_dim(), ldv = padded(dv, kPad);
    const int64_t acc_rows = padded(rows_, kRowStep);
    std::vector<float> acc(acc_rows * ldv, 0.0f);
    std::vector<float> shift(ld_, 0.0f), maximum(ld_);
    std::vector<double> mass(ld_, 0.0);
    std::vector<int32_t> last(ld_, 0);
    for (int64_t r = 0; r < rows_; ++r) shift[r] = row_[r].shift;
    Scratch<float> value_buffer;
    scores_.reserve(kKeyBlock * ld_ + kPad);
    for (int64_t key = keys_.begin; key < keys_.end; key += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, keys_.end - key);
      for (int64_t r = 0; r < rows_; ++r)
        last[r] = static_cast<int32_t>(
            std::clamp<int64_t>(row_[r].visible.end - 1 - key, -1, count));
      ScoreTask task = operands_.task(
          operands_.load_keys(block_.kv_head, key, key + count, keys_buffer_), count,
          queries_.data(), ld_);
      task.last_visible = last.data();
      task.s = scores_.data();
      task.maximum = maximum.data();
      kernels_.scores(task);
      hide_before_window(key, count);
      kernels_.exponentiate(scores_.data(), count, ld_, shift.data(), nullptr, mass.data(),
                            nullptr);
      ProductTask product{};
      set_values(layer_.v, block_.kv_head, {key, key + count}, value_buffer, product);
      product.count = count;
      product.e = scores_.data();
      product.lde = ld_;
      product.rows = rows_;
      product.lda = ldv;
      product.acc = acc.data();
      kernels_.product(product);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      const Row& row = row_[r];
      const double log_sum = block_.log_sum_exp[row.index];
      const float factor = static_cast<float>(std::exp(static_cast<double>(row.shift) - log_sum));
      for (int64_t c = 0; c < dv; ++c)
        block_.outputs[row.index * dv + c] = acc[r * ldv + c] * factor;
    }
  }

  void hide_before_window(int64_t key, int64_t count) {
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t hidden = row_[r].visible.begin - key;
      for (int64_t i = 0; i < std::min(hidden, count); ++i)
        scores_.data()[i * ld_ + r] = kMinusInfinity;
    }
  }

  const Kernels& kernels_;
  const LayerTrace& layer_;
  const AttentionRequest& request_;
  AttentionBlock& block_;
  ScoreOperands operands_;
  int64_t rows_ = 0;
  int64_t ld_ = 0;
  Range keys_;                  ///< whole key blocks that some row sees
  std::vector<Row> row_;        ///< [rows]
  std::vector<float> shifts_;   ///< [key blocks][rows]
  Scratch<float> queries_;      ///< [depth][ld]
  Scratch<float> keys_buffer_;  ///< [kKeyBlock][depth]
  Scratch<float> transposed_;   ///< [depth][kKeyStride]
  Scratch<float> scores_;       ///< [rows][kKeyBlock]
};

}  // namespace

void CpuBackend::attention(const LayerTrace& layer, const AttentionRequest& request,
                           AttentionBlock& block) {
  block.shape(layer, request);  // every cell of its attention is written
  std::ranges::fill(block.logits, kMinusInfinity);
  std::ranges::fill(block.log_sum_exp, 0.0);
  std::ranges::fill(block.outputs, 0.0f);
  const int64_t rows = block.heads * block.rows;
  if (rows == 0) return;
  // A few rows are shared by all threads; no row depends on the others of its tile.
  const int64_t tiles = std::max((rows + kTileRows - 1) / kTileRows,
                                 std::min<int64_t>(threads(), rows / kLeastRows));
  const int64_t height = (rows + tiles - 1) / tiles;
  std::vector<std::unique_ptr<AttentionTile>> workers(threads());
  parallel_for(tiles, [&](int64_t t) {
    auto& worker = workers[thread_index()];
    if (worker == nullptr)
      worker = std::make_unique<AttentionTile>(kernels_, layer, request, block);
    worker->run(t * height, std::min(height, rows - t * height));
  });
}

}  // namespace kvsim
