#include "analysis/drift.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvsim {

Drift::Drift(std::vector<int64_t> best, int query_heads, int64_t rows)
    : best_(std::move(best)), count_(best_.size(), Table<int64_t>(query_heads, rows)),
      sum_(best_.size(), Table<int64_t>(query_heads, rows)) {}

void Drift::add(int query_head, int64_t row, std::span<const double> values) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a > b;
  });
  for (size_t b = 0; b < best_.size(); ++b) {
    const int64_t count = std::clamp<int64_t>(best_[b], 0, std::ssize(order));
    count_[b](query_head, row) = count;
    sum_[b](query_head, row) = std::accumulate(order.begin(), order.begin() + count, int64_t{0});
  }
}

double Drift::mean_position(size_t budget, int query_head, int64_t row) const {
  const int64_t count = count_[budget](query_head, row);
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(sum_[budget](query_head, row)) / static_cast<double>(count);
}

PositionDrift Drift::drift(size_t budget, int query_head) const {
  const auto counts = count_[budget].row(query_head), sums = sum_[budget].row(query_head);
  PositionDrift drift(std::ssize(sums));
  for (size_t r = 0; r < sums.size(); ++r) drift.add(static_cast<int64_t>(r), counts[r], sums[r]);
  return drift;
}

int64_t adaptive_width(const PositionDrift& drift, const Decimal& beta) {
  constexpr int64_t kLeast = 5;
  return std::max(kLeast, 2 * drift.floor_size_over(beta) + 1);
}

int64_t adaptive_shift(const PositionDrift& drift, const Decimal& beta) {
  return drift.floor_over(beta) + (drift.sign() < 0 ? 1 : 0);
}

}  // namespace kvsim
