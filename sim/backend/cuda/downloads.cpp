#include "sim/backend/cuda/downloads.hpp"

#include <cstring>

#include "sim/core/parallel.hpp"

namespace kvsim::cuda {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int64_t kRunBytes = int64_t{256} << 10;  // that one thread copies

}  // namespace

void Downloads::bring_bytes(std::byte* to, const std::byte* from, int64_t bytes,
                            const Stream& stream) {
  const int64_t count = (bytes + kPieceBytes - 1) / kPieceBytes;
  const auto size = [bytes](int64_t piece) {
    return std::min(kPieceBytes, bytes - piece * kPieceBytes);
  };
  for (int64_t sent = 0, piece = 0; piece < count; ++piece) {
    for (; sent < std::min(count, piece + kPieces); ++sent) {
      download(pieces_[sent % kPieces].reserve(kPieceBytes), from + sent * kPieceBytes, size(sent),
               stream);
      there_[sent % kPieces].record(stream);
    }
    there_[piece % kPieces].wait();
    const std::byte* const staged = pieces_[piece % kPieces].data();
    parallel_for((size(piece) + kRunBytes - 1) / kRunBytes, [&](int64_t run) {
      const int64_t begin = run * kRunBytes, end = std::min(size(piece), begin + kRunBytes);
      std::memcpy(to + piece * kPieceBytes + begin, staged + begin,
                  static_cast<size_t>(end - begin));
    });
  }
}

}  // namespace kvsim::cuda
