#include "sim/backend/cuda/tiles.hpp"
#include "sim/backend/cuda/walk.hpp"

namespace kvsim::cuda {
namespace {

/// e^x relative to a maximum; 0 for -inf.
__device__ inline float exp_of(float x) { return exp2_fast(x * kLog2E); }

/// Largest and sum over the four lanes that share a row.
__device__ inline float row_maximum(float x) {
  x = fmaxf(x, shuffle_xor(x, 1));
  return fmaxf(x, shuffle_xor(x, 2));
}
__device__ inline float row_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}

// The walk. A block owns Type::kRows query rows (128 in 16 bit, 64 in float32) of one item and up
// to 128 columns of the values; a warp owns 16 rows, a lane rows g and g + 8 and of every 8 keys or
// columns two (accumulator layout): of the scores kKeys / 2 numbers, of the outputs 64.
//
// Keys and values come in tiles of kKeys (64 or 32) rows, gathered by position straight into shared
// memory; a row of 128 16-bit numbers is 256 bytes in one piece. While a tile is worked on the next
// one is under way. Shared memory for d = 128: 16 bit 34 KB of queries and two stages of 34 KB, 102
// KB in all; float32 34 + 2 * 34 KB.
//
// Per tile a block does 2 * 128 * 64 * (d + 2 dv) flop in 16 bit (scores once, outputs for high and
// low parts) on 64 * (d + dv) elements from the second-level cache: 192 flop per byte for d = dv.
// On an H100 the tensor cores set the time from about 150 flop per byte of that cache on; 64 rows
// would be too few. The exponentials (one per score) take about as long as half of the products and
// run beside those of other warps. Registers: 64 outputs, 32 scores that turn into 32 of their
// parts. Two blocks share a multiprocessor, so that one works while the other waits: 128 registers
// a thread and a few spills, but 15 ms instead of 24 on an H100 (with indices copied in groups).
//
// Sums are float32 in three levels: inside a product (tensor cores), over the keys of a tile, over
// tiles. Every tile has the maximum of its own row as reference, so that float16 parts of scores do
// not underflow.
template <class Type>
class Tile {
 public:
  using Element = typename Type::Element;
  static constexpr int kGroups = Type::kKeys / 8;
  static constexpr int kColumnGroups = kWalkColumns / 8;
  static constexpr int kSteps = Type::kKeys / Type::kStep;

  __device__ Tile(const Walk& walk, const WalkItem& item)
      : p_(walk), item_(item), lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32), ldk_(walk.depth + Type::kPad),
        first_row_(item.first_row + static_cast<int64_t>(blockIdx.x) * Type::kRows),
        rows_(static_cast<int>(item.first_row + item.rows - first_row_)),
        first_column_(static_cast<int>(blockIdx.z) * kWalkColumns),
        columns_(walk.columns - first_column_) {
    if (rows_ > Type::kRows) rows_ = Type::kRows;
    if (columns_ > kWalkColumns) columns_ = kWalkColumns;
    queries_ = reinterpret_cast<Element*>(shared_memory());
    stages_ = reinterpret_cast<unsigned char*>(queries_ + Type::kRows * ldk_);
    busy_ = warp_ * 16 < rows_;
    for (int r = 0; r < 2; ++r) {
      const int own = warp_ * 16 + lane_ / 4 + 8 * r;
      row_[r] = first_row_ + (own < rows_ ? own : 0);
      there_[r] = own < rows_;
      begin_[r] = p_.rows.begin[row_[r]];
      end_[r] = p_.rows.end[row_[r]];
      head_[r] = p_.rows.head[row_[r]] - p_.rows.head[first_row_];
    }
    for (int i = 0; i < kColumnGroups; ++i)
      for (int j = 0; j < 4; ++j) out_[i][j] = 0;
  }

  __device__ void run() {
    copy_rows(queries_, ldk_, Type::kRows, p_.depth, static_cast<const Element*>(p_.queries),
              p_.depth, p_.rows.query + first_row_, 0, rows_);
    const int tiles = (item_.keys + Type::kKeys - 1) / Type::kKeys;
    if (tiles > 0) start_copy(0, 0);
    copies_close_group();
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = p_.stages == 2 ? tile % 2 : 0;
      if (p_.stages == 2) {
        if (tile + 1 < tiles) start_copy(tile + 1, 1 - stage);
        copies_close_group();
        copies_wait<1>();
      } else {
        copies_wait<0>();
      }
      block_barrier();  // the tile is there for all
      if (busy_) work(stage);
      block_barrier();  // nobody reads the tile any more
      if (p_.stages == 1) {
        if (tile + 1 < tiles) start_copy(tile + 1, 0);
        copies_close_group();
      }
    }
    copies_wait<0>();
    if (busy_) write();
  }

 private:
  // One stage: keys, values, positions, importance.
  __device__ int stage_bytes() const {
    return static_cast<int>(sizeof(Element)) * Type::kKeys * (ldk_ + kLdv) +
           4 * Type::kKeys * (1 + p_.heads_per_tile);
  }
  __device__ Element* keys(int stage) const {
    return reinterpret_cast<Element*>(stages_ + stage * stage_bytes());
  }
  __device__ Element* values(int stage) const { return keys(stage) + Type::kKeys * ldk_; }
  __device__ int32_t* positions(int stage) const {
    return reinterpret_cast<int32_t*>(values(stage) + Type::kKeys * kLdv);
  }
  __device__ float* weights(int stage) const {
    return reinterpret_cast<float*>(positions(stage) + Type::kKeys);
  }

  __device__ void start_copy(int tile, int stage) {
    const int64_t first = static_cast<int64_t>(tile) * Type::kKeys;
    const uint32_t* const list = p_.list + item_.first_key + first;
    const int64_t left = item_.keys - first;
    const int count = left < Type::kKeys ? static_cast<int>(left) : Type::kKeys;
    const int64_t row = item_.kv_head * p_.key_rows;
    copy_rows(keys(stage), ldk_, Type::kKeys, p_.depth,
              static_cast<const Element*>(p_.keys) + row * p_.depth, p_.depth, list,
              p_.first_position, count);
    if (item_.outputs)
      copy_rows(values(stage), kLdv, Type::kKeys, columns_,
                static_cast<const Element*>(p_.values) + row * p_.columns + first_column_,
                p_.columns, list, p_.first_position, count);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    if (thread < Type::kKeys)
      positions(stage)[thread] = thread < count ? static_cast<int32_t>(list[thread]) : -1;
    if (!item_.weighted) return;
    const int head = p_.rows.head[first_row_];
    const int heads = p_.rows.head[first_row_ + rows_ - 1] - head + 1;
    for (int i = thread; i < heads * Type::kKeys; i += threads) {
      const int key = i % Type::kKeys;
      weights(stage)[i] =
          key < count ? p_.importance[(head + i / Type::kKeys) * p_.importance_columns + list[key]]
                      : 0.0f;
    }
  }

  __device__ float logit(float product) const {
    const float x = product * p_.scale;
    return p_.softcap > 0 ? p_.softcap * tanhf(x / p_.softcap) : x;
  }

  __device__ void work(int stage) {
    float s[kGroups][4];
    dot_products<Type>(s, queries_ + warp_ * 16 * ldk_, keys(stage), ldk_, p_.depth, lane_);
    float top[2] = {kMinusInfinity, kMinusInfinity};
    KVSIM_UNROLL
    for (int i = 0; i < kGroups; ++i)
      for (int j = 0; j < 4; ++j) {
        const int position = positions(stage)[8 * i + 2 * (lane_ % 4) + j % 2];
        const bool visible = position >= 0 && (!item_.masked || (position >= begin_[j / 2] &&
                                                                 position < end_[j / 2]));
        s[i][j] = visible ? logit(s[i][j]) : kMinusInfinity;
        top[j / 2] = fmaxf(top[j / 2], s[i][j]);
      }
    float keep[2], add[2];  // factors of what there is, and of the tile
    for (int r = 0; r < 2; ++r) {
      top[r] = row_maximum(top[r]);
      const float maximum = fmaxf(maximum_[r], top[r]);
      keep[r] = maximum_[r] == kMinusInfinity ? 0.0f : exp_of(maximum_[r] - maximum);
      add[r] = top[r] == kMinusInfinity ? 0.0f : exp_of(top[r] - maximum);
      if (top[r] == kMinusInfinity) top[r] = 0;  // exp(-inf - 0) = 0
      maximum_[r] = maximum;
    }
    float mass[2] = {0, 0}, importance[2] = {0, 0};
    KVSIM_UNROLL
    for (int i = 0; i < kGroups; ++i)
      for (int j = 0; j < 4; ++j) {
        s[i][j] = exp_of(s[i][j] - top[j / 2]);
        mass[j / 2] += s[i][j];
        if (item_.weighted)
          importance[j / 2] +=
              s[i][j] *
              weights(stage)[head_[j / 2] * Type::kKeys + 8 * i + 2 * (lane_ % 4) + j % 2];
        s[i][j] *= Type::kScale;
      }
    for (int r = 0; r < 2; ++r) {
      mass_[r] = mass_[r] * keep[r] + mass[r] * add[r];
      importance_[r] = importance_[r] * keep[r] + importance[r] * add[r];
      add[r] *= 1 / Type::kScale;
    }
    if (item_.outputs) add_values(s, values(stage), keep, add);
  }

  __device__ void add_values(const float (&s)[kGroups][4], const Element* tile,
                             const float (&keep)[2], const float (&add)[2]) {
    Fragment parts[kSteps];
    KVSIM_UNROLL
    for (int k = 0; k < kSteps; ++k) Type::split(parts[k], s, k);
    KVSIM_UNROLL
    for (int i = 0; i < kColumnGroups; i += 2) {
      if (8 * i >= columns_) break;
      float c0[4] = {0, 0, 0, 0}, c1[4] = {0, 0, 0, 0};
      KVSIM_UNROLL
      for (int k = 0; k < kSteps; ++k)
        Type::template multiply<true>(c0, c1, parts[k], tile + k * Type::kStep * kLdv + 8 * i, kLdv,
                                      lane_);
      for (int j = 0; j < 4; ++j) {
        out_[i][j] = out_[i][j] * keep[j / 2] + c0[j] * add[j / 2];
        out_[i + 1][j] = out_[i + 1][j] * keep[j / 2] + c1[j] * add[j / 2];
      }
    }
  }

  /// Into the state, put together with what is there unless it starts here.
  __device__ void write() {
    for (int r = 0; r < 2; ++r) {
      const int64_t row = slot_row(r);
      RowSums sums{maximum_[r], row_sum(mass_[r]), row_sum(importance_[r])};
      float keep = 0, add = 1;
      if (!item_.fresh) {
        const RowSums before = p_.sums[sums_row(r)];
        const float maximum = fmaxf(before.maximum, sums.maximum);
        keep = before.maximum == kMinusInfinity ? 0.0f : exp_of(before.maximum - maximum);
        add = sums.maximum == kMinusInfinity ? 0.0f : exp_of(sums.maximum - maximum);
        sums = {maximum, before.mass * keep + sums.mass * add,
                before.importance * keep + sums.importance * add};
      }
      if (item_.outputs && there_[r]) {
        float* const to = p_.outputs + row * p_.columns + first_column_;
        KVSIM_UNROLL
        for (int i = 0; i < kColumnGroups; ++i) {
          if (8 * i >= columns_) break;
          for (int j = 0; j < 2; ++j) {
            float* const at = to + 8 * i + 2 * (lane_ % 4) + j;
            const float own = out_[i][2 * r + j] * add;
            *at = item_.fresh ? own : *at * keep + own;
          }
        }
      }
      new_sums_[r] = sums;
    }
  }

 public:
  /// After a barrier: the four lanes of a row read what was there.
  __device__ void write_sums() {
    for (int r = 0; r < 2; ++r)
      if (busy_ && there_[r] && lane_ % 4 == 0) p_.sums[sums_row(r)] = new_sums_[r];
  }

 private:
  __device__ int64_t slot_row(int r) const { return item_.slot * p_.all_rows + row_[r]; }
  /// Every block of columns has sums of its own: blocks run in no order.
  __device__ int64_t sums_row(int r) const {
    return blockIdx.z * p_.slots * p_.all_rows + slot_row(r);
  }

  static constexpr int kLdv = kWalkColumns + Type::kPadValues;

  const Walk& p_;
  const WalkItem& item_;
  int lane_, warp_, ldk_;
  int64_t first_row_;
  int rows_;  ///< of this block
  int first_column_, columns_;
  bool busy_;  ///< the warp has rows
  int64_t row_[2];
  bool there_[2];
  int begin_[2], end_[2], head_[2];
  Element* queries_;
  unsigned char* stages_;
  float maximum_[2] = {kMinusInfinity, kMinusInfinity};
  float mass_[2] = {0, 0}, importance_[2] = {0, 0};  ///< of the lane's keys
  float out_[kColumnGroups][4];
  RowSums new_sums_[2];
};

template <class Type>
__global__ void __launch_bounds__(Type::kRows * 2, 2) walk_keys(Walk walk, int64_t first_item) {
  const WalkItem item = walk.items[first_item + blockIdx.y];
  // Equal for all threads of a block: nobody waits at a barrier for others.
  if (static_cast<int64_t>(blockIdx.x) * Type::kRows >= item.rows) return;
  if (blockIdx.z > 0 && !item.outputs) return;
  Tile<Type> tile(walk, item);
  tile.run();
  block_barrier();
  tile.write_sums();
}

}  // namespace

template <class Type>
void launch_walk(const Walk& walk, int64_t items, int64_t most_rows, cudaStream_t stream) {
  constexpr int64_t kMostItems = 65535;  // of a launch
  for (int64_t first = 0; first < items; first += kMostItems) {
    const int64_t count = items - first < kMostItems ? items - first : kMostItems;
    launch(walk_keys<Type>,
           dim3(static_cast<unsigned>((most_rows + Type::kRows - 1) / Type::kRows),
                static_cast<unsigned>(count),
                static_cast<unsigned>((walk.columns + kWalkColumns - 1) / kWalkColumns)),
           Type::kRows * 2, walk_memory<Type>(walk.depth, walk.stages, walk.heads_per_tile), stream,
           walk, first);
  }
}

template void launch_walk<Bfloat16>(const Walk&, int64_t, int64_t, cudaStream_t);
template void launch_walk<Float16>(const Walk&, int64_t, int64_t, cudaStream_t);
template void launch_walk<Float32>(const Walk&, int64_t, int64_t, cudaStream_t);

}  // namespace kvsim::cuda
