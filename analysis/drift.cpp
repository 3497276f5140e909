#include "analysis/drift.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvsim {

Drift::Drift(std::vector<int64_t> best, int query_heads, int64_t rows)
    : best_(std::move(best)),
      position_(best_.size(), Table<double>(query_heads, rows,
                                            std::numeric_limits<double>::quiet_NaN())) {}

void Drift::add(int query_head, int64_t row, std::span<const double> values) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a > b;
  });
  for (size_t b = 0; b < best_.size(); ++b) {
    const int64_t count = std::min(best_[b], static_cast<int64_t>(order.size()));
    if (count <= 0) continue;
    double sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += order[static_cast<size_t>(k)];
    position_[b](query_head, row) = sum / static_cast<double>(count);
  }
}

double Drift::mean_position(size_t budget, int query_head, int64_t row) const {
  return position_[budget](query_head, row);
}

double Drift::drift(size_t budget, int query_head) const {
  const auto rows = position_[budget].row(query_head);
  const size_t half = rows.size() / 2;
  if (best_[budget] <= 0 || rows.size() < 2) return 0;
  const auto middle = rows.begin() + static_cast<int64_t>(half);
  const double front = std::accumulate(rows.begin(), middle, 0.0);
  const double rear = std::accumulate(middle, rows.end(), 0.0);
  return rear / static_cast<double>(rows.size() - half) - front / static_cast<double>(half);
}

int64_t adaptive_width(double drift, double beta) {
  constexpr int64_t kLeast = 5;
  return std::max(kLeast, 2 * static_cast<int64_t>(std::floor(std::abs(drift) / beta)) + 1);
}

int64_t adaptive_shift(double drift, double beta) {
  const double delta = -drift;   // Eq. 10 takes front minus rear
  if (delta == 0) return 0;
  return static_cast<int64_t>(std::floor(delta / beta)) + (delta < 0 ? 1 : 0);
}

}  // namespace kvsim
