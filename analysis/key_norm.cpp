#include "analysis/key_norm.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/statistics.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {

std::vector<Range> prompt_parts(int64_t entries, int64_t most) {
  const int64_t count = std::min(entries, most);
  std::vector<Range> parts;
  for (int64_t p = 0; p < count; ++p)
    parts.push_back({p * entries / count, (p + 1) * entries / count});
  return parts;
}

KeyNorm::KeyNorm(int query_heads, int64_t entries) : attention_(query_heads, entries) {}

void KeyNorm::add(const AttentionBlock& block, int64_t) {
  parallel_for(block.heads, [&](int64_t x) {
    const auto sum = attention_.row(block.kv_head * block.heads + x);
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* row = block.attention_row(static_cast<int>(x), r);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(row[i]);
    }
  });
}

KeyNorm::WithAttention KeyNorm::with_attention(int query_head,
                                               std::span<const double> norms) const {
  const auto attention = attention_.row(query_head);
  return {pearson(norms, attention), spearman(norms, attention)};
}

std::vector<double> key_norms(const LayerTrace& layer, int kv_head) {
  const int64_t entries = layer.info->prompt_len, d = layer.k.dim(2);
  Table<float> keys(entries, d);
  layer.k.read(kv_head, 0, entries, keys.data());
  std::vector<double> norms;
  for (int64_t i = 0; i < entries; ++i) {
    double squares = 0;
    for (const float x : keys.row(i)) squares += static_cast<double>(x) * static_cast<double>(x);
    norms.push_back(std::sqrt(squares));
  }
  return norms;
}

double norm_with_position(std::span<const double> norms) {
  std::vector<double> positions(norms.size());
  std::iota(positions.begin(), positions.end(), 0.0);
  return spearman(norms, positions);
}

}  // namespace kvsim
