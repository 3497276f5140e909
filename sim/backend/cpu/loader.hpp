#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "sim/backend/cpu/kernels.hpp"
#include "sim/backend/cpu/scratch.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Rows begin..end-1 of slice `a` of a tensor as float32 with row stride `ld` >= columns; columns
/// beyond the tensor's are zero. Returns the tensor's own memory when that will do.
const float* load_rows(const Tensor& tensor, int64_t a, int64_t begin, int64_t end, int64_t ld,
                       Scratch<float>& buffer);

/// Bytes of such rows as they are stored, for bringing them near.
std::span<const std::byte> stored_rows(const Tensor& tensor, int64_t a, int64_t begin, int64_t end);

/// One stored query row of a tile.
struct QueryRow {
  int64_t head = 0;   ///< query head
  int64_t row = 0;    ///< index into the stored queries
};

/// Transposed and scaled queries qt[d][ld]: column r is rows[r], columns beyond are zero.
void load_queries(const LayerTrace& layer, std::span<const QueryRow> rows, int64_t ld, float* qt);

}  // namespace kvsim
