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
    rotation.rotate(work.rotation(), -positions[static_cast<size_t>(r)], queries.row(r));
  }
  return queries;
}

Table<float> unrotated_keys(const LayerWork& work, int kv_head, Range entries) {
  Table<float> keys(entries.size(), work.trace().k.dim(2));
  work.trace().k.read(kv_head, entries.begin, entries.end, keys.data());
  RotationMemory rotation;
  const Rotation& own = work.rotation();
  for (int64_t r = 0; r < keys.rows(); ++r) {
    rotation.rotate(own, -(entries.begin + r), keys.row(r));
    if (own.attention_factor == 1) continue;
    const auto factor = static_cast<float>(own.attention_factor);
    for (size_t j = 0; j < own.pairs(); ++j) {
      keys.row(r)[own.first_of(j)] /= factor;
      keys.row(r)[own.second_of(j)] /= factor;
    }
  }
  return keys;
}

MeanRotation::MeanRotation(const Rotation& rotation, std::span<const int64_t> positions)
    : rotation_(rotation) {
  for (const double frequency : rotation.inv_freq) {
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
  for (size_t j = 0; j < cosine_.size(); ++j) {
    double& a = row[rotation_.first_of(j)];
    double& b = row[rotation_.second_of(j)];
    const double x = a, y = b;
    a = x * cosine_[j] - y * sine_[j];
    b = x * sine_[j] + y * cosine_[j];
  }
}

}  // namespace kvsim
