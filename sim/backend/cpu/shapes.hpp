#pragma once
#include <array>
#include <cstdint>
#include <memory>

#include "sim/backend/backend.hpp"

namespace kvsim {

/// How the CPU backend cuts its loops, so that what is read again is still near. No result depends
/// on it but for rounding. 0: what the kernels of the instruction set take.
struct Shapes {
  int64_t tile_rows = 96;                ///< query rows of a tile of the replay; <= kTileRows
  int64_t one_chunk = 4096;              ///< a prompt of so many keys is one chunk
  int64_t chunk = 2048;                  ///< keys per chunk of a longer one
  int64_t sum_bytes = int64_t{8} << 20;  ///< exp-scores of a tile of sums of attention
  int64_t index_block = 0;               ///< keys of a block of a product, through an index
  int64_t row_block = 0;                 ///< and one after the other
  int64_t score_block = 0;               ///< keys whose scores are finished together
};

/// A member of Shapes, and what `bench/run.sh --only shapes` tries beside the default.
struct ShapeMember {
  const char* name;
  int64_t Shapes::*value;
  const char* forms;  ///< of the benchmark, that it matters to
  std::array<int64_t, 3> others;
};
constexpr ShapeMember kShapeMembers[] = {
    {"tile_rows", &Shapes::tile_rows, "fused", {24, 48, 72}},
    {"one_chunk", &Shapes::one_chunk, "fused", {1024, 2048, 8192}},
    {"chunk", &Shapes::chunk, "fused", {1024, 4096, 8192}},
    {"index_block", &Shapes::index_block, "fused", {32, 64, 96}},
    {"row_block", &Shapes::row_block, "fused", {64, 96, 256}},
    {"score_block", &Shapes::score_block, "fused,sums", {48, 192, 384}},
    {"sum_bytes", &Shapes::sum_bytes, "sums", {2 << 20, 4 << 20, 16 << 20}}};

std::unique_ptr<Backend> make_cpu_backend(const Shapes& shapes);

}  // namespace kvsim
