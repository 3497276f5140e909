#include "sim/stages/indicator/unrotated.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/rotation.hpp"

namespace kvsim {

std::span<const int64_t> observing_from(const Segment& segment, int64_t first) {
  const auto begin = std::ranges::lower_bound(segment.positions, first);
  if (begin == segment.positions.end()) return segment.positions;
  return {begin, segment.positions.end()};
}

Table<float> unrotated_queries(const LayerWork& work, int head,
                               std::span<const int64_t> positions) {
  const std::vector<int64_t> stored = stored_queries(work, positions, false);
  Table<float> queries(std::ssize(positions), work.trace().q.dim(2));
  RotationMemory rotation;
  for (int64_t r = 0; r < queries.rows(); ++r) {
    const int64_t query = stored[static_cast<size_t>(r)];
    work.trace().q.read(head, query, query + 1, queries.row(r).data());
    rotation.rotate(work.info(), -positions[static_cast<size_t>(r)], queries.row(r));
  }
  return queries;
}

Table<float> unrotated_keys(const LayerWork& work, int kv_head, Range entries) {
  Table<float> keys(entries.size(), work.trace().k.dim(2));
  work.trace().k.read(kv_head, entries.begin, entries.end, keys.data());
  RotationMemory rotation;
  for (int64_t r = 0; r < keys.rows(); ++r)
    rotation.rotate(work.info(), -(entries.begin + r), keys.row(r));
  return keys;
}

MeanRotation::MeanRotation(const TraceInfo& info, std::span<const int64_t> positions)
    : info_(info) {
  for (const double frequency : info.rope_inv_freq) {
    double cosine = 0, sine = 0;
    for (const int64_t position : positions) {
      cosine += std::cos(static_cast<double>(position) * frequency);
      sine += std::sin(static_cast<double>(position) * frequency);
    }
    cosine_.push_back(cosine / static_cast<double>(positions.size()));
    sine_.push_back(sine / static_cast<double>(positions.size()));
  }
}

void MeanRotation::turn(std::span<double> row) const {
  const size_t half = cosine_.size();
  for (size_t j = 0; j < half; ++j) {
    double& a = row[info_.rope_interleaved ? 2 * j : j];
    double& b = row[info_.rope_interleaved ? 2 * j + 1 : j + half];
    const double x = a, y = b;
    a = x * cosine_[j] - y * sine_[j];
    b = x * sine_[j] + y * cosine_[j];
  }
}

}  // namespace kvsim
