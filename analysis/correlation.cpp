#include "analysis/correlation.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

/// Rows of importance of one KV head's group, [heads * rows][columns].
Table<float> importance_rows(const AttentionBlock& block, const float* importance, int64_t stride) {
  Table<float> rows(block.heads * block.rows, block.columns);
  for (int x = 0; x < block.heads; ++x) {
    const float* weight = importance + (block.kv_head * block.heads + x) * stride;
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* attention = block.attention_row(x, r);
      const auto out = rows.row(x * block.rows + r);
      for (size_t i = 0; i < out.size(); ++i) out[i] = attention[i] * weight[i];
    }
  }
  return rows;
}

void add(std::span<const float> row, std::span<const uint32_t> entries, Moments& moments) {
  for (const uint32_t i : entries) {
    const auto value = static_cast<double>(row[i]);
    moments.sum += value;
    moments.squares += value * value;
  }
}

/// Walks one owner's chain over one row; adds the moments of the set at every boundary.
void walk(std::span<const float> row, const KeptChain& chain,
          const std::function<void(size_t, const Moments&)>& at_boundary) {
  Moments moments;
  int64_t begin = 0;
  for (size_t b = 0; b < chain.end.size(); ++b) {
    add(row,
        std::span(chain.order)
            .subspan(static_cast<size_t>(begin), static_cast<size_t>(chain.end[b] - begin)),
        moments);
    begin = chain.end[b];
    at_boundary(b, moments);
  }
}

/// Calls body(kv head, first step, rows, importance rows) for tiles of later steps.
void for_tiles(LayerWork& work, int64_t columns, const float* importance, int64_t stride,
               const std::function<void(int, int64_t, int64_t, const Table<float>&)>& body) {
  AttentionPass pass;
  pass.positions =
      std::span(work.info().query_position).subspan(static_cast<size_t>(work.info().first_step()));
  pass.look_ahead = true;
  pass.columns = columns;
  for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t first_row) {
    body(block.kv_head, first_row, block.rows, importance_rows(block, importance, stride));
  });
}

}  // namespace

std::vector<std::vector<Moments>> set_moments(LayerWork& work, const std::vector<ReplayPlan>& plans,
                                              const float* importance, int64_t stride) {
  size_t sets = 0;
  for (const ReplayPlan& plan : plans) sets += static_cast<size_t>(plan.boundaries());
  std::vector<std::vector<Moments>> moments(
      sets, std::vector<Moments>(static_cast<size_t>(work.info().steps())));
  const int group = work.group_size();
  for_tiles(work, work.entries(), importance, stride,
            [&](int kv, int64_t t0, int64_t rows, const Table<float>& tile) {
    // One step per iteration: every sum belongs to one thread.
    parallel_for(rows, [&](int64_t r) {
      size_t first_set = 0;
      for (const ReplayPlan& plan : plans) {
        for (int x = 0; x < group; ++x) {
          const int owner = plan.per_query_head ? kv * group + x : kv;
          walk(tile.row(x * rows + r), plan.owners[static_cast<size_t>(owner)],
               [&](size_t boundary, const Moments& part) {
            Moments& sum = moments[first_set + boundary][static_cast<size_t>(t0 + r)];
            sum.sum += part.sum;
            sum.squares += part.squares;
          });
        }
        first_set += static_cast<size_t>(plan.boundaries());
      }
    });
  });
  return moments;
}

std::vector<Moments> later_moments(LayerWork& work, const float* importance, int64_t stride) {
  std::vector<Moments> moments(static_cast<size_t>(work.info().steps()));
  for_tiles(work, work.info().total_len, importance, stride,
            [&](int, int64_t t0, int64_t rows, const Table<float>& tile) {
    for (int64_t row = 0; row < tile.rows(); ++row) {
      Moments& sum = moments[static_cast<size_t>(t0 + row % rows)];
      for (const float value : tile.row(row).subspan(static_cast<size_t>(work.entries()))) {
        sum.sum += static_cast<double>(value);
        sum.squares += static_cast<double>(value) * static_cast<double>(value);
      }
    }
  });
  return moments;
}

double importance_pearson(const Moments& all, const Moments& kept, double count) {
  // With y = x on kept entries and 0 elsewhere, sum(xy) = sum(y^2).
  const double xx = count * all.squares - all.sum * all.sum;
  const double yy = count * kept.squares - kept.sum * kept.sum;
  const double xy = count * kept.squares - all.sum * kept.sum;
  const bool equal = all.sum == kept.sum && all.squares == kept.squares;
  if (equal) return 1;
  if (xx <= 0 || yy <= 0) return 0;
  return std::clamp(xy / std::sqrt(xx * yy), -1.0, 1.0);
}

double importance_cosine(const Moments& all, const Moments& kept) {
  if (all.squares == kept.squares) return 1;
  return all.squares == 0 ? 0 : std::min(1.0, std::sqrt(kept.squares / all.squares));
}

}  // namespace kvsim
