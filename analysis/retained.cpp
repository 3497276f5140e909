#include "analysis/retained.hpp"

#include <algorithm>
#include <vector>

namespace kvsim {

double retained_share(double kept, double total) {
  if (total == 0) return 1;
  // The two sums add the same float32 terms in different orders, so that the ratio of a set that
  // holds everything may come out a rounding error beyond its range.
  return std::clamp(kept / total, 0.0, 1.0);
}

void retained_pooled(const Table<double>& kept, const Table<double>& total, std::span<double> out) {
  std::vector<double> kept_sum(out.size(), 0.0), total_sum(out.size(), 0.0);
  for (int64_t h = 0; h < kept.rows(); ++h) {
    const auto kept_row = kept.row(h), total_row = total.row(h);
    for (size_t s = 0; s < out.size(); ++s) {
      kept_sum[s] += kept_row[s];
      total_sum[s] += total_row[s];
    }
  }
  for (size_t s = 0; s < out.size(); ++s) out[s] = retained_share(kept_sum[s], total_sum[s]);
}

void retained_of_head(const Table<double>& kept, const Table<double>& total, int head,
                      std::span<double> out) {
  for (size_t s = 0; s < out.size(); ++s) {
    const auto step = static_cast<int64_t>(s);
    out[s] = retained_share(kept(head, step), total(head, step));
  }
}

}  // namespace kvsim
