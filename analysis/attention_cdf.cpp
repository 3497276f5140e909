#include "analysis/attention_cdf.hpp"

#include <algorithm>
#include <functional>
#include <limits>

#include "analysis/summary.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {

AttentionCdf::AttentionCdf(int query_heads, int64_t steps) {
  held_.fill(Table<double>(query_heads, steps, std::numeric_limits<double>::quiet_NaN()));
}

void AttentionCdf::add(const AttentionBlock& block, int64_t first_row) {
  parallel_for(block.heads * block.rows, [&](int64_t task) {
    const auto x = static_cast<int>(task / block.rows);
    const int64_t r = task % block.rows;
    const int64_t visible = block.positions[static_cast<size_t>(r)] + 1;
    const float* attention = block.attention_row(x, r);
    std::vector<float> row(attention, attention + visible);
    double total = 0;
    for (const float a : row) total += static_cast<double>(a);
    if (total == 0) return;
    // From the widest share to the narrowest: each is found among the one before.
    auto end = row.end();
    for (size_t share = kPercents.size(); share-- > 0;) {
      const auto cut = row.begin() + (kPercents[share] * visible + 99) / 100;
      if (cut != end) std::nth_element(row.begin(), cut, end, std::greater<>());
      end = cut;
      double sum = 0;
      for (auto at = row.begin(); at != cut; ++at) sum += static_cast<double>(*at);
      held_[share](block.kv_head * block.heads + x, first_row + r) = sum / total;
    }
  });
}

double AttentionCdf::mean_of(size_t share) const { return mean(held_[share].values()); }
double AttentionCdf::p05_of(size_t share) const { return percentile(held_[share].values(), 5); }

}  // namespace kvsim
