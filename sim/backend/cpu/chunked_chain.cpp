#include "sim/backend/cpu/chunked_chain.hpp"

#include <algorithm>
#include <cassert>

namespace kvsim {

ChunkedChain::ChunkedChain(const KeptChain& chain, int64_t entries, int64_t chunk)
    : bands_(static_cast<int64_t>(chain.end.size())) {
  assert(chunk > 0 && chunk <= kLargestChunk);
  const int64_t kept = chain.end.empty() ? 0 : chain.end.back();
  assert(kept <= static_cast<int64_t>(chain.order.size()) && kept <= entries);
  // Band of every entry; bands_ for those that no set keeps.
  std::vector<int32_t> band_of(static_cast<size_t>(entries), static_cast<int32_t>(bands_));
  int64_t at = 0;
  for (int64_t band = 0; band < bands_; ++band) {
    assert(chain.end[static_cast<size_t>(band)] >= at);
    for (; at < chain.end[static_cast<size_t>(band)]; ++at)
      band_of[chain.order[static_cast<size_t>(at)]] = static_cast<int32_t>(band);
  }
  keys_.resize(static_cast<size_t>(kept));
  std::vector<uint32_t> next(static_cast<size_t>(bands_) + 1);
  uint32_t written = 0;
  for (int64_t first = 0; first < entries; first += chunk) {
    const int64_t last = std::min(entries, first + chunk);
    std::fill(next.begin(), next.end(), 0u);
    for (int64_t i = first; i < last; ++i) {
      const int32_t band = band_of[static_cast<size_t>(i)];
      ++next[static_cast<size_t>(band)];
    }
    for (int64_t band = 0; band < bands_; ++band) {  // counts become positions
      const uint32_t count = next[static_cast<size_t>(band)];
      next[static_cast<size_t>(band)] = written;
      begin_.push_back(written);
      written += count;
    }
    begin_.push_back(written);
    for (int64_t i = first; i < last; ++i) {
      const int32_t band = band_of[static_cast<size_t>(i)];
      if (band == bands_) continue;
      keys_[next[static_cast<size_t>(band)]++] = static_cast<uint16_t>(i - first);
    }
  }
  assert(written == kept && "a chain names an entry twice");
}

}  // namespace kvsim
