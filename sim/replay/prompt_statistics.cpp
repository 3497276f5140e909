#include "sim/replay/prompt_statistics.hpp"

#include <algorithm>

#include "sim/stages/aggregate/slot_statistics.hpp"
#include "sim/stages/common_keys.hpp"
#include "sim/stages/protect/protect.hpp"
#include "sim/stages/queries/queries.hpp"

namespace kvsim {

Segment decode_segment(const Settings& settings, int64_t budget, const TraceInfo& info) {
  const auto& queries = chosen<Queries>(settings);
  Segment segment;
  segment.range = {0, info.prompt_len};
  queries.observe(settings, queries.window(settings, budget, info.prompt_len), info, segment);
  segment.candidates = segment.range;  // a window's entries are candidates once it has moved on
  return segment;
}

PromptStatistics::PromptStatistics(LayerWork& work, const Settings& settings,
                                   const Segment& segment)
    : RowConsumer(segment), work_(work), heads_(work, settings),
      rows_(row_indicator(settings).rows(work, settings, segment)) {
  const auto& aggregate = chosen<Aggregate>(settings);
  const int owners = per_query_head(settings) ? work.query_heads() : work.kv_heads();
  const auto rows = static_cast<int64_t>(segment.positions.size());
  for (int owner = 0; owner < owners; ++owner) {
    scores_.push_back(aggregate.follow(settings, rows, work.entries()));
    if (settings.real(keys::std_keep) > 0)
      deviations_.push_back(deviation_of_seen_rows(work.entries()));
  }
}

AttentionPass PromptStatistics::wanted() const {
  AttentionPass pass{.positions = segment().positions};
  pass.rows_outer = heads_.whole_layer();
  return pass;
}

/// Sums will do where every stage is linear in the rows.
std::optional<AttentionSumRequest> PromptStatistics::wanted_sums() const {
  if (rows_->summed_as() != AttentionSum::Of::attention || !heads_.linear() ||
      scores_.front()->weights().empty() || !deviations_.empty())
    return std::nullopt;
  AttentionSum sum;
  for (const int64_t position : segment().positions)
    sum.weights.push_back(rows_->row_factor(position));
  return AttentionSumRequest{.rows = stored_queries(work_, segment().positions, false),
                             .columns = work_.entries(),
                             .sums = {std::move(sum)}};
}

void PromptStatistics::take_sums(const TakenSums& taken) {
  const Table<double>& sums = *taken.front();
  std::vector<int64_t> visible;
  for (const int64_t position : segment().positions)
    visible.push_back(std::min(work_.entries(), position + 1));
  const int heads = work_.group_size();
  std::vector<double> head_row, grouped(static_cast<size_t>(work_.entries()));
  for (int kv_head = 0; kv_head < work_.kv_heads(); ++kv_head) {
    for (int x = 0; x < heads; ++x) {
      const int head = kv_head * heads + x;
      head_row.assign(sums.row(head).begin(), sums.row(head).begin() + work_.entries());
      rows_->scale(head, {0, work_.entries()}, head_row);
      if (heads_.combines())
        heads_.add(kv_head, x, head_row, grouped);
      else
        scores_[static_cast<size_t>(head)]->add_sum(head_row, visible);
    }
    if (!heads_.combines() || !heads_.complete(kv_head)) continue;
    const Range owners = heads_.owners(kv_head, 0);
    for (int64_t owner = owners.begin; owner < owners.end; ++owner)
      scores_[static_cast<size_t>(owner)]->add_sum(grouped, visible);
  }
}

void PromptStatistics::start(const AttentionBlock& block, int64_t) { rows_->start(block); }

void PromptStatistics::add(Range owners, std::span<const double> row, int64_t visible) {
  for (auto owner = static_cast<size_t>(owners.begin); owner < static_cast<size_t>(owners.end);
       ++owner) {
    scores_[owner]->add_row(row, visible);
    if (!deviations_.empty()) deviations_[owner]->add_row(row, visible);
  }
}

void PromptStatistics::run(const AttentionBlock& block, int64_t, int) {
  const int64_t n = work_.entries();
  if (heads_.begins(block.kv_head)) grouped_ = Table<double>(block.rows, n);
  std::vector<double> head_row(static_cast<size_t>(n));
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t visible = std::min(n, block.positions[static_cast<size_t>(r)] + 1);
    for (int x = 0; x < block.heads; ++x) {
      rows_->row(block, x, r, {0, n}, head_row);
      if (heads_.combines())
        heads_.add(block.kv_head, x, head_row, grouped_.row(r));
      else
        add(heads_.owners(block.kv_head, x), head_row, visible);
    }
    if (heads_.combines() && heads_.complete(block.kv_head))
      add(heads_.owners(block.kv_head, 0), grouped_.row(r), visible);
  }
}

Table<float> norms_of_all(LayerWork& work, Norm norm) {
  const int64_t n = work.entries(), all = work.info().total_len;
  const Table<float>& prompt = work.projected_norms(norm);
  Table<float> later(work.query_heads(), all - n), whole(work.query_heads(), all);
  if (n < all) work.backend().projected_norms(work.trace(), norm, {n, all}, later.data());
  for (int64_t h = 0; h < whole.rows(); ++h) {
    std::ranges::copy(prompt.row(h), whole.row(h).begin());
    std::ranges::copy(later.row(h), whole.row(h).begin() + n);
  }
  return whole;
}

}  // namespace kvsim
