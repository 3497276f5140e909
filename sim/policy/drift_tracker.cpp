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
  order_.resize(row.size());
  std::iota(order_.begin(), order_.end(), 0u);
  const auto better = [&](uint32_t a, uint32_t b) {
    return row[a] != row[b] ? row[a] > row[b] : a > b;
  };
  for (size_t variant : descending_) {   // each K is looked for among the K before
    const int64_t count = std::min(best_[variant], static_cast<int64_t>(order_.size()));
    if (count <= 0) continue;
    std::nth_element(order_.begin(), order_.begin() + (count - 1), order_.end(), better);
    order_.resize(static_cast<size_t>(count));
    double sum = 0;
    for (uint32_t i : order_) sum += i;
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
