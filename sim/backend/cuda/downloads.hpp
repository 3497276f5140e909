#pragma once
#include "sim/backend/cuda/memory.hpp"

namespace kvsim::cuda {

/// Brings results to memory of the host that is not pinned, through pieces that are: while one
/// piece is on its way, all threads copy the one before to its place.
class Downloads {
 public:
  /// There when it returns.
  template <class T>
  void bring(T* to, const T* from, int64_t count, const Stream& stream) {
    bring_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
                count * static_cast<int64_t>(sizeof(T)), stream);
  }

 private:
  void bring_bytes(std::byte* to, const std::byte* from, int64_t bytes, const Stream& stream);

  static constexpr int kPieces = 2;
  PinnedBuffer<std::byte> pieces_[kPieces];
  Event there_[kPieces];
};

}  // namespace kvsim::cuda
