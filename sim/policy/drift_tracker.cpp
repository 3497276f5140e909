#include "sim/policy/drift_tracker.hpp"

#include <algorithm>

namespace kvsim {

DriftTracker::DriftTracker(std::vector<int64_t> best, int64_t rows)
    : best_(std::move(best)),
      descending_(best_.size()),
      rows_(rows),
      front_(best_.size(), 0.0),
      rear_(best_.size(), 0.0) {
  std::iota(descending_.begin(), descending_.end(), size_t{0});
  std::stable_sort(descending_.begin(), descending_.end(),
                   [this](size_t a, size_t b) { return best_[a] > best_[b]; });
}

void DriftTracker::add(int64_t j, std::span<const double> row) {
  places_.resize(row.size());
  for (size_t i = 0; i < row.size(); ++i) places_[i] = {row[i], static_cast<uint32_t>(i)};
  const auto better = [](const Place& a, const Place& b) {
    return a.score != b.score ? a.score > b.score : a.entry > b.entry;
  };
  for (size_t variant : descending_) {   // each K is looked for among the K before
    const int64_t count = std::min(best_[variant], static_cast<int64_t>(places_.size()));
    if (count <= 0) continue;
    std::nth_element(places_.begin(), places_.begin() + (count - 1), places_.end(), better);
    places_.resize(static_cast<size_t>(count));
    double sum = 0;
    for (const Place& place : places_) sum += place.entry;
    (j < rows_ / 2 ? front_ : rear_)[variant] += sum / static_cast<double>(count);
  }
}

double DriftTracker::drift(size_t variant) const {
  if (best_[variant] <= 0 || rows_ < 2) return 0;
  const int64_t half = rows_ / 2;
  return front_[variant] / static_cast<double>(half) -
         rear_[variant] / static_cast<double>(rows_ - half);
}

}  // namespace kvsim
