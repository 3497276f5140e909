#include <cmath>
#include <type_traits>

#include "sim/backend/cuda/row_norms.hpp"

namespace kvsim::cuda {
namespace {

// A block owns Type::kRows rows of one slice, a warp 16 of them, a lane the columns of the
// accumulator layout. Shared memory: the rows once, kRows * (depth + pad) elements, and 64 columns
// of b at a time, depth * (64 + pad): 53 KB for d = 128 in 16 bit, 69 KB in float32. Per 64 columns
// a block does 2 * kRows * 64 * depth flop on depth * 64 elements of b, which all blocks of a slice
// read from the second-level cache: 128 flop per byte in 16 bit, so that tensor cores and not
// memory set the time. Sums of 64 columns are float32, of all columns float64.
template <class Type, class Source>
__global__ void row_norms(RowNorms p) {
  using Element = typename Type::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * Type::kRows;
  const int slice = static_cast<int>(blockIdx.y);
  const int ldx = p.depth + Type::kPad, ldb = kNormColumns + Type::kPadValues;
  Element* const x = reinterpret_cast<Element*>(shared_memory());
  Element* const b = x + Type::kRows * ldx;

  const Source* const from = static_cast<const Source*>(p.x) +
                             static_cast<int64_t>(slice / p.group) * p.x_slice;
  for (int i = thread; i < Type::kRows * p.depth; i += threads) {
    const int row = i / p.depth, column = i % p.depth;
    const bool there = first + row < p.rows && column < p.x_columns;
    const Source value = there ? from[(first + row) * p.x_row + column] : Source{};
    if constexpr (std::is_same_v<Source, Element>)
      x[row * ldx + column] = value;
    else
      x[row * ldx + column] = value.widened();
  }

  const Element* const matrix = static_cast<const Element*>(p.b) +
                                static_cast<int64_t>(slice) * p.depth * p.width;
  constexpr int kPiece = 16 / static_cast<int>(sizeof(Element));
  double sums[2] = {0, 0};  // rows g and g + 8 of the warp
  for (int c = 0; c < p.width; c += kNormColumns) {
    for (int i = thread; i < p.depth * (kNormColumns / kPiece); i += threads) {
      const int row = i / (kNormColumns / kPiece), column = i % (kNormColumns / kPiece) * kPiece;
      const bool there = c + column < p.width;
      copy16_async(b + row * ldb + column,
                   matrix + static_cast<int64_t>(row) * p.width + (there ? c + column : 0), there);
    }
    copies_close_group();
    copies_wait<0>();
    block_barrier();
    float part[2] = {0, 0};
    for (int pair = 0; pair < kNormColumns; pair += 16) {
      float y0[4] = {0, 0, 0, 0}, y1[4] = {0, 0, 0, 0};
      for (int begin = 0; begin < p.depth; begin += Type::kChain) {
        float c0[4] = {0, 0, 0, 0}, c1[4] = {0, 0, 0, 0};
        for (int k = begin; k < begin + Type::kChain && k < p.depth; k += Type::kStep) {
          Fragment a;
          Type::load_a(a, x + warp * 16 * ldx + k, ldx, lane);
          Type::template multiply<false>(c0, c1, a, b + k * ldb + pair, ldb, lane);
        }
        for (int j = 0; j < 4; ++j) {
          y0[j] += c0[j];
          y1[j] += c1[j];
        }
      }
      for (int j = 0; j < 4; ++j)
        part[j / 2] += p.squares ? y0[j] * y0[j] + y1[j] * y1[j] : fabsf(y0[j]) + fabsf(y1[j]);
    }
    for (int r = 0; r < 2; ++r) sums[r] += static_cast<double>(part[r]);
    block_barrier();  // before the next columns overwrite these
  }
  for (int r = 0; r < 2; ++r) {
    sums[r] += shuffle_xor(sums[r], 1);
    sums[r] += shuffle_xor(sums[r], 2);
    const int64_t row = first + warp * 16 + lane / 4 + 8 * r;
    if (lane % 4 == 0 && row < p.rows) p.out[slice * p.rows + row] = sums[r];
  }
}

}  // namespace

template <class Type, class Source>
void launch_row_norms(const RowNorms& norms, int64_t slices, cudaStream_t stream) {
  if (norms.rows == 0) return;
  launch(row_norms<Type, Source>,
         dim3(static_cast<unsigned>((norms.rows + Type::kRows - 1) / Type::kRows),
              static_cast<unsigned>(slices)),
         Type::kRows * 2, static_cast<size_t>(row_norms_memory<Type>(norms.depth)), stream, norms);
}

template void launch_row_norms<Bfloat16, Bfloat16::Element>(const RowNorms&, int64_t, cudaStream_t);
template void launch_row_norms<Float16, Float16::Element>(const RowNorms&, int64_t, cudaStream_t);
template void launch_row_norms<Float32, float>(const RowNorms&, int64_t, cudaStream_t);
template void launch_row_norms<Float32, Widening<Bfloat16>>(const RowNorms&, int64_t, cudaStream_t);
template void launch_row_norms<Float32, Widening<Float16>>(const RowNorms&, int64_t, cudaStream_t);

}  // namespace kvsim::cuda
