#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda/scores.hpp"
#include "sim/backend/cuda/tiles.hpp"

namespace kvsim::cuda {
namespace {

constexpr int kTilesPerBlock = 8;  // key tiles that share one copy of the queries
constexpr int kRowThreads = 256;

// A block owns Type::kRows rows and eight tiles of keys, a warp 16 rows, a lane the accumulator
// layout. Shared memory for d = 128: 51 KB in 16 bit, 51 KB in float32. Each score takes 2 d flop
// and is written as 4 bytes: 64 flop per byte for d = 128, so that memory sets the time.
template <class Type>
__global__ void __launch_bounds__(Type::kRows * 2) store_scores(Scores p) {
  using Element = typename Type::Element;
  constexpr int kGroups = Type::kKeys / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int ld = p.depth + Type::kPad;
  Element* const queries = reinterpret_cast<Element*>(shared_memory());
  Element* const keys = queries + Type::kRows * ld;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * Type::kRows;
  const int rows = static_cast<int>(p.count - first < Type::kRows ? p.count - first : Type::kRows);
  copy_rows(queries, ld, Type::kRows, p.depth, static_cast<const Element*>(p.queries), p.depth,
            p.rows.query + first, 0, rows);
  for (int tile = 0; tile < kTilesPerBlock; ++tile) {
    const int64_t key = (static_cast<int64_t>(blockIdx.y) * kTilesPerBlock + tile) * Type::kKeys;
    if (key >= p.key_count) break;  // the same for all threads
    const int64_t left = p.key_count - key;
    const int count = left < Type::kKeys ? static_cast<int>(left) : Type::kKeys;
    copy_rows(keys, ld, Type::kKeys, p.depth, static_cast<const Element*>(p.keys) + key * p.depth,
              p.depth, nullptr, 0, count);
    copies_close_group();
    copies_wait<0>();
    block_barrier();
    float s[kGroups][4];
    dot_products<Type>(s, queries + warp * 16 * ld, keys, ld, p.depth, lane);
    for (int i = 0; i < kGroups; ++i)
      for (int j = 0; j < 4; ++j) {
        const int own = warp * 16 + lane / 4 + j / 2 * 8;
        const int column = 8 * i + 2 * (lane % 4) + j % 2;
        if (own >= rows || column >= count) continue;
        const int64_t position = p.first_position + key + column;
        const bool visible = position >= p.rows.begin[first + own] &&
                             position < p.rows.end[first + own];
        const float x = s[i][j] * p.scale;
        p.logits[(first + own) * p.ld + position] = !visible ? kMinusInfinity
                                                    : p.softcap > 0
                                                        ? p.softcap * tanhf(x / p.softcap)
                                                        : x;
      }
    block_barrier();  // before the next tile overwrites the keys
  }
}

template <class Combine>
__device__ double over_block(double mine, const Combine& combine) {
  double* const shared = reinterpret_cast<double*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x);
  block_barrier();  // the memory may still be read
  shared[thread] = mine;
  for (int half = kRowThreads / 2; half > 0; half /= 2) {
    block_barrier();
    if (thread < half) shared[thread] = combine(shared[thread], shared[thread + half]);
  }
  block_barrier();
  return shared[0];
}

// One block per row, threads over positions: three passes over one row of logits, which the caches
// hold. Sums are float64 and meet in a fixed order.
__global__ void softmax_rows(Softmax p) {
  const int64_t row = blockIdx.x;
  const float* const x = p.logits + row * p.visible;
  float top = kMinusInfinity;
  for (int64_t i = threadIdx.x; i < p.visible; i += kRowThreads) top = fmaxf(top, x[i]);
  const float largest = static_cast<float>(
      over_block(static_cast<double>(top), [](double a, double b) { return fmax(a, b); }));
  const float maximum = largest > kMinusInfinity ? largest : 0;  // nothing is seen
  double sum = 0;
  for (int64_t i = threadIdx.x; i < p.visible; i += kRowThreads)
    sum += static_cast<double>(expf(x[i] - maximum));
  double total = over_block(sum, [](double a, double b) { return a + b; });
  const float sink = p.sinks != nullptr ? p.sinks[p.head[row]] : kMinusInfinity;
  const double above = static_cast<double>(sink) - static_cast<double>(maximum);
  if (p.sinks != nullptr) total += exp(fmin(above, kSinkAlone));
  if (threadIdx.x == 0) {
    p.log_sum_exp[row] = above > kSinkAlone ? static_cast<double>(sink)
                                            : static_cast<double>(maximum) + log(total);
    p.maximum[row] = maximum;
    p.inverse[row] = total > 0 ? 1 / total : 0;
  }
  const float inverse = total > 0 ? static_cast<float>(1 / total) : 0;
  for (int64_t i = threadIdx.x; i < p.columns; i += kRowThreads)
    p.attention[row * p.columns + i] = i < p.visible ? expf(x[i] - maximum) * inverse : 0.0f;
}

// Term of one row in the sum of one column.
__device__ double term(const ColumnSums& p, int64_t row, int64_t column) {
  if (p.of == AttentionSum::Of::attention)
    return p.inverse[row] *
           static_cast<double>(expf(p.logits[row * p.ld + column] - p.maximum[row]));
  float x = 0;
  bool seen = false;
  for (int64_t at = row; at < p.heads * p.rows; at += p.rows) {
    const float logit = p.logits[at * p.ld + column];
    seen |= logit != kMinusInfinity;
    x += expf(logit - p.maximum[at]) * static_cast<float>(p.inverse[at] / p.heads);
  }
  const double mean = static_cast<double>(x);
  if (p.of == AttentionSum::Of::below) return seen && x < static_cast<float>(p.bounds[row]) ? 1 : 0;
  return p.of == AttentionSum::Of::group_mean ? mean : mean * mean;
}

// One thread per column, all rows in their order; neighbours read neighbours.
__global__ void add_columns(ColumnSums p) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (column >= p.columns) return;
  double sum = p.sums[column];
  for (int64_t row = 0; row < p.rows; ++row)
    if (p.weights[row] != 0) sum += p.weights[row] * term(p, row, column);
  p.sums[column] = sum;
}

template <class Type>
int64_t memory(int64_t depth) {
  return static_cast<int64_t>(sizeof(typename Type::Element)) * (Type::kRows + Type::kKeys) *
         (depth + Type::kPad);
}

}  // namespace

int64_t scores_memory(ElementType type, int64_t depth) {
  int64_t bytes = 0;
  with_types<Bfloat16, Float16, Float32>(
      type, [&](auto chosen) { bytes = memory<decltype(chosen)>(depth); });
  return bytes;
}

void launch_scores(ElementType type, const Scores& scores, cudaStream_t stream) {
  with_types<Bfloat16, Float16, Float32>(type, [&](auto chosen) {
    using Type = decltype(chosen);
    const int64_t keys = Type::kKeys * kTilesPerBlock;
    launch(store_scores<Type>,
           dim3(static_cast<unsigned>((scores.count + Type::kRows - 1) / Type::kRows),
                static_cast<unsigned>((scores.key_count + keys - 1) / keys)),
           Type::kRows * 2, memory<Type>(scores.depth), stream, scores);
  });
}

void run_softmax(SoftmaxMemory& memory, Softmax softmax, cudaStream_t stream) {
  softmax.logits = memory.logits.data();
  softmax.log_sum_exp = memory.log_sum_exp.reserve(softmax.rows);
  softmax.maximum = memory.maximum.reserve(softmax.rows);
  softmax.inverse = memory.inverse.reserve(softmax.rows);
  softmax.attention = memory.attention.reserve(softmax.rows * softmax.columns);
  launch(softmax_rows, dim3(static_cast<unsigned>(softmax.rows)), kRowThreads,
         kRowThreads * sizeof(double), stream, softmax);
}

void launch_column_sums(const ColumnSums& sums, cudaStream_t stream) {
  if (sums.columns == 0) return;  // a launch needs a block
  launch(add_columns, dim3(static_cast<unsigned>((sums.columns + kRowThreads - 1) / kRowThreads)),
         kRowThreads, 0, stream, sums);
}

}  // namespace kvsim::cuda
