#pragma once
#include <span>
#include <vector>

#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {

/// The observing queries of a segment from position `first` on; all of them where there are none.
std::span<const int64_t> observing_from(const Segment& segment, int64_t first);

/// Queries of a head at these positions as they were before their rotation, but for its factor:
/// [positions][d].
Table<float> unrotated_queries(const LayerWork& work, int head, std::span<const int64_t> positions);

/// Keys of a KV head as they were before their rotation: [entries][d].
Table<float> unrotated_keys(const LayerWork& work, int kv_head, Range entries);

/// The mean of rotations by several numbers of positions. It is linear, but no rotation itself.
class MeanRotation {
 public:
  MeanRotation(const Rotation& rotation, std::span<const int64_t> positions);
  void turn(std::span<double> row) const;

 private:
  const Rotation& rotation_;
  std::vector<double> cosine_, sine_;  // [r], means over the positions
};

}  // namespace kvsim
