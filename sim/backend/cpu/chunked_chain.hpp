#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/backend/backend.hpp"

namespace kvsim {

/// Keys of a chunk are numbered in 16 bits.
constexpr int64_t kLargestChunk = 65536;

/// A kept chain laid out for a walk in key chunks: the keys of every chunk, sorted by band, and
/// ascending inside a band. Band b holds the entries between boundaries b - 1 and b.
class ChunkedChain {
 public:
  ChunkedChain() = default;
  ChunkedChain(const KeptChain& chain, int64_t entries, int64_t chunk);

  int64_t bands() const { return bands_; }
  /// Keys of a band inside a chunk, relative to the chunk's first key.
  std::span<const uint16_t> keys(int64_t chunk, int64_t band) const {
    const size_t at = static_cast<size_t>(chunk * (bands_ + 1) + band);
    return {keys_.data() + begin_[at], static_cast<size_t>(begin_[at + 1] - begin_[at])};
  }

  /// Keys of all bands inside a chunk; they follow one another in memory.
  int64_t count(int64_t chunk) const {
    const size_t at = static_cast<size_t>(chunk * (bands_ + 1));
    return begin_[at + static_cast<size_t>(bands_)] - begin_[at];
  }

 private:
  int64_t bands_ = 0;
  std::vector<uint16_t> keys_;
  std::vector<uint32_t> begin_;  ///< [chunks][bands + 1]
};

}  // namespace kvsim
