#include "sim/core/rotation.hpp"

#include <cmath>

namespace kvsim {

void RotationMemory::rotate(const Rotation& rotation, int64_t positions, std::span<float> row) {
  const size_t pairs = rotation.pairs();
  if (&rotation != rotation_ || positions != positions_) {
    rotation_ = &rotation;
    positions_ = positions;
    cosine_.resize(pairs);
    sine_.resize(pairs);
    for (size_t j = 0; j < pairs; ++j) {
      const double angle = static_cast<double>(positions) * rotation.inv_freq[j];
      cosine_[j] = std::cos(angle);
      sine_[j] = std::sin(angle);
    }
  }
  for (size_t j = 0; j < pairs; ++j) {
    float& a = row[rotation.first_of(j)];
    float& b = row[rotation.second_of(j)];
    const double x = a;
    const double y = b;
    a = static_cast<float>(x * cosine_[j] - y * sine_[j]);
    b = static_cast<float>(x * sine_[j] + y * cosine_[j]);
  }
}

}  // namespace kvsim
