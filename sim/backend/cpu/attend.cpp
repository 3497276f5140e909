// Attention over slots. A tile is up to 96 queries of one owner; slots go by in blocks, keys first:
// their scores, log-weights on top, exponentials relative to a shift that is raised lazily, and the
// product with their values. A few queries, as at a step of decoding, are scored one by one and
// multiplied with the values together. Float32; sums over slots are two-level, or float64.

#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {
namespace {

constexpr int64_t kSlotBlock = 256;
constexpr int64_t kFewRows = 8;  // a tile would score sixteen

/// Memory of one thread for tiles of attention over slots, kept from call to call: a step of
/// decoding takes less time than to find it anew. ld, stride: padded queries of a tile, padded dv.
struct AttendMemory {
  std::vector<int64_t> seen;     ///< [queries] slots that each sees
  std::vector<int32_t> last;     ///< [ld] last slot of the block that a query sees
  std::vector<float> maximum;    ///< [ld] of the block
  std::vector<float> shift;      ///< [ld]
  std::vector<double> mass;      ///< [ld] sum of exp(logit - shift)
  std::vector<double> products;  ///< [slots of a segment], one by one
  Scratch<float> queries;        ///< [d][ld], scaled; [d] one by one
  Scratch<float> scores;         ///< [slots of the block][ld]; [slots] one by one
  Scratch<float> exponentials;   ///< [slots][queries], one by one
  Scratch<float> sums;           ///< [queries][stride]
  Scratch<float> values;         ///< [slots of the block][stride]
};

/// Works on one tile at a time, in memory that serves one after the other.
class SlotTile {
 public:
  SlotTile(const Kernels& kernels, const LayerTrace& layer, AttendMemory& memory)
      : kernels_(kernels), layer_(layer), m_(memory), depth_(layer.k.dim(2)),
        width_(layer.value_dim()), stride_(padded(layer.value_dim(), kPad)) {}

  /// Queries first..first+count-1 of an owner's [heads * rows].
  void run(const SlotRows& owner, int64_t first, int64_t count) {
    owner_ = &owner;
    first_ = first;
    count_ = count;
    slots_ = owner.slots();
    m_.seen.assign(count, slots_);
    if (owner.seen != nullptr)
      for (int64_t r = 0; r < count; ++r) m_.seen[r] = owner.seen[(first + r) % owner.rows];
    few_ = count <= kFewRows && depth_ % kPad == 0;
    if (few_)
      run_few();
    else
      run_tile();
    if (!wants_softmax()) return;
    for (int64_t r = 0; r < count; ++r) finish(first + r, r);
  }

 private:
  bool wants_softmax() const {
    return owner_->outputs != nullptr || owner_->attention != nullptr ||
           owner_->log_sum_exp != nullptr;
  }

  /// body(segment, slots before it, its first slots up to `end` of all), for what is not empty.
  template <class Body>
  void over_segments(int64_t end, const Body& body) {
    int64_t before = 0;
    for (const SlotSegment& segment : owner_->segments) {
      const int64_t used = std::min(segment.count, end - before);
      if (used > 0) body(segment, before, used);
      before += segment.count;
    }
  }

  void run_tile() {
    start();
    over_segments(std::ranges::max(m_.seen),
                  [&](const SlotSegment& segment, int64_t before, int64_t used) {
      for (int64_t slot = 0; slot < used; slot += kSlotBlock)
        add(segment, before, slot, std::min(kSlotBlock, used - slot));
    });
  }

  void run_few() {
    m_.shift.resize(count_);
    m_.mass.resize(count_);
    float* const e = m_.exponentials.reserve(slots_ * count_ + kPad);
    for (int64_t r = 0; r < count_; ++r) run_row(r, e);
    if (owner_->outputs == nullptr) return;
    std::fill_n(e + slots_ * count_, kPad, 0.0f);  // read beside what is wanted
    clear_sums();
    over_segments(std::ranges::max(m_.seen),
                  [&](const SlotSegment& segment, int64_t before, int64_t used) {
      for (int64_t slot = 0; slot < used; slot += kSlotBlock)
        add_values(segment, slot, std::min(kSlotBlock, used - slot), e + (before + slot) * count_,
                   count_, count_);
    });
  }

  /// Logits of query `r` of the tile, and their exponentials: column r of e[slots][queries].
  void run_row(int64_t r, float* e) {
    const int64_t row = first_ + r, seen = m_.seen[r];
    float* const query = m_.queries.reserve(depth_);
    std::copy_n(owner_->queries + row * depth_, depth_, query);
    kernels_.scale_row(query, depth_, static_cast<float>(layer_.scale));
    float* const x = count_ == 1 ? e : m_.scores.reserve(slots_ + kPad);
    over_segments(seen, [&](const SlotSegment& segment, int64_t before, int64_t used) {
      row_scores(segment, used, row / owner_->rows, x + before);
    });
    if (owner_->logits != nullptr)
      std::fill_n(std::copy_n(x, seen, owner_->logits + row * slots_), slots_ - seen,
                  kMinusInfinity);
    if (!wants_softmax()) return;
    const float top = kernels_.maximum(x, seen);
    const float shift = m_.shift[r] = top == kMinusInfinity ? 0 : top;
    m_.mass[r] = kernels_.exp_row(x, seen, shift, x);
    if (owner_->attention != nullptr)
      std::fill_n(std::copy_n(x, seen, owner_->attention + row * slots_), slots_ - seen, 0.0f);
    if (owner_->outputs == nullptr) return;
    for (int64_t s = 0; s < seen && x != e; ++s) e[s * count_ + r] = x[s];
    for (int64_t s = seen; s < slots_; ++s) e[s * count_ + r] = 0;
  }

  void row_scores(const SlotSegment& segment, int64_t count, int64_t head, float* out) {
    m_.products.assign(count, 0.0);
    kernels_.fold(segment.keys, count, depth_, m_.queries.data(), m_.products.data());
    std::ranges::transform(m_.products, out, [](double x) { return static_cast<float>(x); });
    if (layer_.softcap > 0) kernels_.softcap(out, count, static_cast<float>(layer_.softcap));
    if (segment.log_weight == nullptr) return;
    const float* const weight = segment.log_weight + head * segment.count;
    for (int64_t s = 0; s < count; ++s) out[s] += weight[s];
  }

  void clear_sums() {
    const int64_t count = padded(count_, kRowStep) * stride_;
    std::fill_n(m_.sums.reserve(count), count, 0.0f);
  }

  void start() {
    ld_ = padded(padded(count_, kRowStep), kPad);
    const auto ld = static_cast<size_t>(ld_);
    m_.shift.assign(ld, 0.0f);
    m_.mass.assign(ld, 0.0);
    m_.last.resize(ld);
    m_.maximum.resize(ld);
    float* const queries = m_.queries.reserve(depth_ * ld_);
    std::fill_n(queries, depth_ * ld_, 0.0f);
    kernels_.transpose(owner_->queries + first_ * depth_, count_, depth_, depth_, queries, ld_);
    kernels_.scale_row(queries, depth_ * ld_, static_cast<float>(layer_.scale));
    m_.scores.reserve(kSlotBlock * ld_ + kPad);
    clear_sums();
    for (float* const logits : {owner_->logits, owner_->attention})
      if (logits != nullptr) std::fill_n(logits + first_ * slots_, count_ * slots_, kMinusInfinity);
  }

  void add(const SlotSegment& segment, int64_t before, int64_t slot, int64_t count) {
    for (int64_t r = 0; r < ld_; ++r)
      m_.last[r] = static_cast<int32_t>(r < count_ ? std::min(m_.seen[r] - before - slot, count) - 1
                                                   : -1);
    std::ranges::fill(m_.maximum, kMinusInfinity);
    ScoreTask task{};
    task.k = segment.keys + slot * depth_;
    task.keys = count;
    task.d = depth_;
    task.qt = m_.queries.data();
    task.scale = 1;
    task.ld = ld_;
    task.softcap = static_cast<float>(layer_.softcap);
    task.last_visible = m_.last.data();
    task.s = m_.scores.data();
    task.maximum = m_.maximum.data();
    kernels_.scores(task);
    if (segment.log_weight != nullptr) add_weights(segment, slot, count);
    for (float* const logits : {owner_->logits, owner_->attention})
      if (logits != nullptr)
        kernels_.transpose(m_.scores.data(), count, count_, ld_,
                           logits + first_ * slots_ + before + slot, slots_);
    if (!wants_softmax()) return;
    raise_shifts();
    kernels_.exponentiate(m_.scores.data(), count, ld_, m_.shift.data(), nullptr, m_.mass.data(),
                          nullptr);
    if (owner_->outputs == nullptr) return;
    add_values(segment, slot, count, m_.scores.data(), ld_, count_);
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
    product.acc = m_.sums.data();
    product.lda = stride_;
    kernels_.product(product);
  }

  /// Adds the log-weights of each head to its queries' scores.
  void add_weights(const SlotSegment& segment, int64_t slot, int64_t count) {
    std::ranges::fill(m_.maximum, kMinusInfinity);
    for (int64_t begin = 0, end = 0; begin < count_; begin = end) {
      const int64_t head = (first_ + begin) / owner_->rows;
      end = std::min(count_, (head + 1) * owner_->rows - first_);
      const float* const weight = segment.log_weight + head * segment.count + slot;
      for (int64_t s = 0; s < count; ++s)
        kernels_.shift_row(m_.scores.data() + s * ld_ + begin, end - begin, weight[s],
                           m_.maximum.data() + begin);
    }
  }

  /// Brings the shift of each query near its largest logit so far, and its sums with it.
  void raise_shifts() {
    for (int64_t r = 0; r < count_; ++r) {
      const bool empty = m_.mass[r] == 0;
      const float top = m_.maximum[r];
      if (top == kMinusInfinity || !(empty || top > m_.shift[r] + kSlack)) continue;
      const double factor = std::exp(static_cast<double>(m_.shift[r]) - static_cast<double>(top));
      m_.shift[r] = top;
      if (empty) continue;
      m_.mass[r] *= factor;
      kernels_.scale_row(m_.sums.data() + r * stride_, stride_, static_cast<float>(factor));
    }
  }

  /// Values with a row stride that the product takes.
  const float* values(const SlotSegment& segment, int64_t slot, int64_t count) {
    const float* const from = segment.values + slot * width_;
    if (width_ == stride_) return from;
    float* const to = m_.values.reserve(kSlotBlock * stride_);
    for (int64_t s = 0; s < count; ++s) {
      std::copy_n(from + s * width_, width_, to + s * stride_);
      std::fill(to + s * stride_ + width_, to + (s + 1) * stride_, 0.0f);
    }
    return to;
  }

  /// Writes the results of query `row` of the owner, query `r` of the tile.
  void finish(int64_t row, int64_t r) {
    const auto shift = static_cast<double>(m_.shift[r]);
    double total = m_.mass[r];
    const double sink = owner_->sinks == nullptr
                            ? -std::numeric_limits<double>::infinity()
                            : static_cast<double>(owner_->sinks[row / owner_->rows]);
    total += sink_mass(sink, shift);
    if (owner_->log_sum_exp != nullptr)
      owner_->log_sum_exp[row] = log_sum_with_sink(shift, total, sink);
    const double divisor = total > 0 ? total : 1;  // nothing is seen
    if (owner_->attention != nullptr) finish_attention(row, m_.shift[r], divisor);
    if (owner_->outputs == nullptr) return;
    const float* const sums = m_.sums.data() + r * stride_;
    for (int64_t c = 0; c < width_; ++c)
      owner_->outputs[row * width_ + c] = static_cast<float>(static_cast<double>(sums[c]) /
                                                             divisor);
  }

  /// Of a few queries the exponentials lie there, of a tile the logits.
  void finish_attention(int64_t row, float shift, double divisor) {
    float* const x = owner_->attention + row * slots_;
    if (!few_) kernels_.exp_row(x, slots_, shift, x);
    kernels_.scale_row(x, slots_, static_cast<float>(1 / divisor));
  }

  const Kernels& kernels_;
  const LayerTrace& layer_;
  AttendMemory& m_;
  int64_t depth_, width_, stride_;  // d, dv, and dv as the product takes it
  const SlotRows* owner_ = nullptr;
  int64_t first_ = 0, count_ = 0, slots_ = 0, ld_ = 0;
  bool few_ = false;  // queries are scored one by one
};

struct Tile {
  const SlotRows* owner;
  int64_t first, count;
};

}  // namespace

void CpuBackend::attend(const LayerTrace& layer, std::span<const SlotRows> owners) {
  std::vector<Tile> tiles;
  for (const SlotRows& owner : owners) {
    const int64_t rows = owner.heads * owner.rows;
    for (int64_t first = 0; first < rows; first += kTileRows)
      tiles.push_back({&owner, first, std::min(kTileRows, rows - first)});
  }
  parallel_for(std::ssize(tiles), [&](int64_t t) {
    static thread_local AttendMemory memory;
    const Tile& tile = tiles[t];
    SlotTile(kernels_, layer, memory).run(*tile.owner, tile.first, tile.count);
  });
}

}  // namespace kvsim
