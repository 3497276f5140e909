// Attention over slots. A tile is up to 96 queries of one owner; slots go by in blocks, keys first:
// their scores, log-weights on top, exponentials relative to a shift that is raised lazily, and the
// product with their values. Float32; sums over slots are two-level, or float64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "sim/backend/cpu/scratch.hpp"
#include "sim/backend/cpu/verbs.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

constexpr int64_t kSlotBlock = 256;
constexpr int64_t kFewRows = 4;  // up to these, queries are worked on one by one
constexpr float kSlack = 20.0f;  // see ReplayTile
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Works on one tile at a time; memory is used again by the next tile of the same thread.
class SlotTile {
 public:
  SlotTile(const Kernels& kernels, const LayerTrace& layer)
      : kernels_(kernels), layer_(layer), depth_(layer.k.dim(2)), width_(layer.value_dim()),
        stride_(padded(layer.value_dim(), kPad)) {}

  /// Queries first..first+count-1 of an owner's [heads * rows].
  void run(const SlotRows& owner, int64_t first, int64_t count) {
    owner_ = &owner;
    slots_ = owner.slots();
    if (count <= kFewRows && depth_ % kPad == 0) {
      for (int64_t row = first; row < first + count; ++row) run_row(row);
      return;
    }
    start(owner, first, count);
    const int64_t end = *std::ranges::max_element(seen_);
    int64_t before = 0;  // slots of earlier segments
    for (const SlotSegment& segment : owner.segments) {
      const int64_t used = std::min(segment.count, end - before);
      for (int64_t slot = 0; slot < used; slot += kSlotBlock)
        add(segment, before, slot, std::min(kSlotBlock, used - slot));
      before += segment.count;
    }
    for (int64_t r = 0; r < count_; ++r) finish(first_ + r, r);
  }

 private:
  /// One query by itself: a tile would work on sixteen.
  void run_row(int64_t row) {
    const int64_t seen = owner_->seen != nullptr ? owner_->seen[row % owner_->rows] : slots_;
    float* const query = queries_.reserve(depth_);
    std::copy_n(owner_->queries + row * depth_, depth_, query);
    kernels_.scale_row(query, depth_, static_cast<float>(layer_.scale));
    float* const x = scores_.reserve(slots_ + kPad);
    int64_t before = 0;
    for (const SlotSegment& segment : owner_->segments) {
      row_scores(segment, std::min(segment.count, seen - before), row / owner_->rows, x + before);
      before += segment.count;
    }
    if (owner_->logits != nullptr)
      std::fill_n(std::copy_n(x, seen, owner_->logits + row * slots_), slots_ - seen,
                  kMinusInfinity);
    if (owner_->outputs == nullptr && owner_->log_sum_exp == nullptr) return;
    shift_.assign(1, kernels_.maximum(x, seen));
    mass_.assign(1, kernels_.exp_row(x, seen, shift_[0], x));
    std::fill_n(x + seen, slots_ + kPad - seen, 0.0f);  // read beside what is wanted
    std::fill_n(sums_.reserve(kRowStep * stride_), stride_, 0.0f);
    before = 0;
    for (const SlotSegment& segment : owner_->segments) {
      const int64_t used = owner_->outputs == nullptr ? 0 : std::min(segment.count, seen - before);
      for (int64_t slot = 0; slot < used; slot += kSlotBlock)
        add_values(segment, slot, std::min(kSlotBlock, used - slot), x + before + slot, 1, 1);
      before += segment.count;
    }
    finish(row, 0);
  }

  void row_scores(const SlotSegment& segment, int64_t count, int64_t head, float* out) {
    if (count <= 0) return;
    products_.assign(static_cast<size_t>(count), 0.0);
    kernels_.fold(segment.keys, count, depth_, queries_.data(), products_.data());
    std::ranges::transform(products_, out, [](double x) { return static_cast<float>(x); });
    if (layer_.softcap > 0) kernels_.softcap(out, count, static_cast<float>(layer_.softcap));
    if (segment.log_weight == nullptr) return;
    const float* const weight = segment.log_weight + head * segment.count;
    for (int64_t s = 0; s < count; ++s) out[s] += weight[s];
  }

  void start(const SlotRows& owner, int64_t first, int64_t count) {
    first_ = first;
    count_ = count;
    ld_ = padded(padded(count, kRowStep), kPad);
    const auto ld = static_cast<size_t>(ld_);
    shift_.assign(ld, 0.0f);
    mass_.assign(ld, 0.0);
    seen_.assign(static_cast<size_t>(count), slots_);
    if (owner.seen != nullptr)
      for (int64_t r = 0; r < count; ++r)
        seen_[static_cast<size_t>(r)] = owner.seen[(first + r) % owner.rows];
    last_.resize(ld);
    maximum_.resize(ld);
    float* const queries = queries_.reserve(depth_ * ld_);
    std::fill_n(queries, depth_ * ld_, 0.0f);
    kernels_.transpose(owner.queries + first * depth_, count, depth_, depth_, queries, ld_);
    kernels_.scale_row(queries, depth_ * ld_, static_cast<float>(layer_.scale));
    scores_.reserve(kSlotBlock * ld_ + kPad);
    std::fill_n(sums_.reserve(padded(count, kRowStep) * stride_), padded(count, kRowStep) * stride_,
                0.0f);
    if (owner.logits != nullptr)
      std::fill_n(owner.logits + first * slots_, count * slots_, kMinusInfinity);
  }

  void add(const SlotSegment& segment, int64_t before, int64_t slot, int64_t count) {
    for (int64_t r = 0; r < ld_; ++r)
      last_[static_cast<size_t>(r)] = static_cast<int32_t>(
          r < count_ ? std::min(seen_[static_cast<size_t>(r)] - before - slot, count) - 1 : -1);
    std::ranges::fill(maximum_, kMinusInfinity);
    ScoreTask task{};
    task.k = segment.keys + slot * depth_;
    task.keys = count;
    task.d = depth_;
    task.qt = queries_.data();
    task.scale = 1;
    task.ld = ld_;
    task.softcap = static_cast<float>(layer_.softcap);
    task.last_visible = last_.data();
    task.s = scores_.data();
    task.maximum = maximum_.data();
    kernels_.scores(task);
    if (segment.log_weight != nullptr) add_weights(segment, slot, count);
    if (owner_->logits != nullptr)
      kernels_.transpose(scores_.data(), count, count_, ld_,
                         owner_->logits + first_ * slots_ + before + slot, slots_);
    if (owner_->outputs == nullptr && owner_->log_sum_exp == nullptr) return;
    raise_shifts();
    kernels_.exponentiate(scores_.data(), count, ld_, shift_.data(), nullptr, mass_.data(),
                          nullptr);
    if (owner_->outputs == nullptr) return;
    add_values(segment, slot, count, scores_.data(), ld_, count_);
  }

  /// Adds values of some slots, by their exponentials e[slot][lde], to the sums of `rows` queries.
  void add_values(const SlotSegment& segment, int64_t slot, int64_t count, const float* e,
                  int64_t lde, int64_t rows) {
    ProductTask product{};
    product.count = count;
    product.e = e;
    product.lde = lde;
    product.rows = rows;
    product.v = values(segment, slot, count);
    product.ldv = stride_;
    product.columns = stride_;
    product.acc = sums_.data();
    product.lda = stride_;
    kernels_.product(product);
  }

  /// Adds the log-weights of each head to its queries' scores.
  void add_weights(const SlotSegment& segment, int64_t slot, int64_t count) {
    std::ranges::fill(maximum_, kMinusInfinity);
    for (int64_t begin = 0, end = 0; begin < count_; begin = end) {
      const int64_t head = (first_ + begin) / owner_->rows;
      end = std::min(count_, (head + 1) * owner_->rows - first_);
      const float* const weight = segment.log_weight + head * segment.count + slot;
      for (int64_t s = 0; s < count; ++s) {
        float* const row = scores_.data() + s * ld_;
        for (int64_t r = begin; r < end; ++r) {
          row[r] += weight[s];
          float& top = maximum_[static_cast<size_t>(r)];
          top = row[r] > top ? row[r] : top;
        }
      }
    }
  }

  /// Brings the shift of each query near its largest logit so far, and its sums with it.
  void raise_shifts() {
    for (int64_t r = 0; r < count_; ++r) {
      const auto at = static_cast<size_t>(r);
      const bool empty = mass_[at] == 0;
      const float top = maximum_[at];
      if (top == kMinusInfinity || !(empty || top > shift_[at] + kSlack)) continue;
      const double factor = std::exp(static_cast<double>(shift_[at]) - static_cast<double>(top));
      shift_[at] = top;
      if (empty) continue;
      mass_[at] *= factor;
      kernels_.scale_row(sums_.data() + r * stride_, stride_, static_cast<float>(factor));
    }
  }

  /// Values with a row stride that the product takes.
  const float* values(const SlotSegment& segment, int64_t slot, int64_t count) {
    const float* const from = segment.values + slot * width_;
    if (width_ == stride_) return from;
    float* const to = values_.reserve(kSlotBlock * stride_);
    for (int64_t s = 0; s < count; ++s) {
      std::copy_n(from + s * width_, width_, to + s * stride_);
      std::fill(to + s * stride_ + width_, to + (s + 1) * stride_, 0.0f);
    }
    return to;
  }

  /// What is wanted of query `row` of the owner, query `r` of the tile.
  void finish(int64_t row, int64_t r) {
    const auto head = static_cast<size_t>(owner_->first_head + row / owner_->rows);
    const auto shift = static_cast<double>(shift_[static_cast<size_t>(r)]);
    double total = mass_[static_cast<size_t>(r)];
    if (!layer_.attention_sink.empty())
      total += std::exp(static_cast<double>(layer_.attention_sink[head]) - shift);
    if (owner_->log_sum_exp != nullptr) owner_->log_sum_exp[row] = shift + std::log(total);
    if (owner_->outputs == nullptr) return;
    const float* const sums = sums_.data() + r * stride_;
    for (int64_t c = 0; c < width_; ++c)
      owner_->outputs[row * width_ + c] = static_cast<float>(static_cast<double>(sums[c]) / total);
  }

  const Kernels& kernels_;
  const LayerTrace& layer_;
  int64_t depth_, width_, stride_;  // d, dv, and dv as the product takes it
  const SlotRows* owner_ = nullptr;
  int64_t first_ = 0, count_ = 0, slots_ = 0, ld_ = 0;
  std::vector<int64_t> seen_;     // [count]
  std::vector<int32_t> last_;     // [ld] last slot of the block that a query sees
  std::vector<float> maximum_;    // [ld] of the block
  std::vector<float> shift_;      // [ld]
  std::vector<double> mass_;      // [ld] sum of exp(logit - shift)
  std::vector<double> products_;  // [slots of a segment], one by one
  Scratch<float> queries_;        // [d][ld], scaled; [d] one by one
  Scratch<float> scores_;         // [slots of the block][ld]
  Scratch<float> sums_, values_;  // [count][stride], [slots of the block][stride]
};

struct Tile {
  const SlotRows* owner;
  int64_t first, count;
};

}  // namespace

void cpu_attend(const Kernels& kernels, const LayerTrace& layer, std::span<const SlotRows> owners) {
  std::vector<Tile> tiles;
  for (const SlotRows& owner : owners) {
    const int64_t rows = owner.heads * owner.rows;
    for (int64_t first = 0; first < rows; first += kTileRows)
      tiles.push_back({&owner, first, std::min(kTileRows, rows - first)});
  }
  std::vector<std::unique_ptr<SlotTile>> workers(static_cast<size_t>(threads()));
  parallel_for(std::ssize(tiles), [&](int64_t t) {
    auto& worker = workers[static_cast<size_t>(thread_index())];
    if (worker == nullptr) worker = std::make_unique<SlotTile>(kernels, layer);
    const Tile& tile = tiles[static_cast<size_t>(t)];
    worker->run(*tile.owner, tile.first, tile.count);
  });
}

}  // namespace kvsim
