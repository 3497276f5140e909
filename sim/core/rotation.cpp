#include "sim/core/rotation.hpp"

#include <cmath>

namespace kvsim {

void RotationMemory::rotate(const TraceInfo& info, int64_t positions, std::span<float> row) {
  const size_t half = info.rope_inv_freq.size();
  if (positions != positions_ || cosine_.size() != half) {
    positions_ = positions;
    cosine_.resize(half);
    sine_.resize(half);
    for (size_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(positions) * info.rope_inv_freq[j];
      cosine_[j] = std::cos(angle);
      sine_[j] = std::sin(angle);
    }
  }
  for (size_t j = 0; j < half; ++j) {
    float& a = row[info.rope_interleaved ? 2 * j : j];
    float& b = row[info.rope_interleaved ? 2 * j + 1 : j + half];
    const double x = a;
    const double y = b;
    a = static_cast<float>(x * cosine_[j] - y * sine_[j]);
    b = static_cast<float>(x * sine_[j] + y * cosine_[j]);
  }
}

}  // namespace kvsim
