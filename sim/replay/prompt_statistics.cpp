#include "sim/replay/prompt_statistics.hpp"

#include <algorithm>

#include "sim/stages/aggregate/slot_statistics.hpp"
#include "sim/stages/queries/queries.hpp"

namespace kvsim {

Segment decode_segment(const Settings& settings, int64_t budget, const TraceInfo& info) {
  const auto& queries = Kinds<Queries>::find(settings.text("queries"));
  Segment segment;
  segment.range = {0, info.prompt_len};
  queries.observe(settings, queries.window(settings, budget, info.prompt_len), info, segment);
  segment.candidates = segment.range;  // a window's entries are candidates once it has moved on
  return segment;
}

PromptStatistics::PromptStatistics(LayerWork& work, const Settings& settings,
                                   const Segment& segment)
    : RowConsumer(segment), work_(work), group_(Kinds<Group>::find(settings.text("group"))),
      rows_(Kinds<Indicator>::find(settings.text("indicator")).rows(work, settings, segment)) {
  const auto& aggregate = Kinds<Aggregate>::find(settings.text("aggregate"));
  const int owners = settings.is("granularity", "query") ? work.query_heads() : work.kv_heads();
  const auto rows = static_cast<int64_t>(segment.positions.size());
  for (int owner = 0; owner < owners; ++owner) {
    scores_.push_back(aggregate.follow(settings, rows, work.entries()));
    if (settings.real("std_keep") > 0)
      deviations_.push_back(deviation_of_seen_rows(work.entries()));
  }
}

AttentionPass PromptStatistics::wanted() const {
  AttentionPass pass{.positions = segment().positions};
  pass.rows_outer = group_.span() == GroupSpan::layer;
  return pass;
}

/// Sums will do where every stage is linear in the rows.
std::optional<AttentionSumRequest> PromptStatistics::wanted_sums() const {
  if (rows_->summed_as() != AttentionSum::Of::attention || !group_.linear() ||
      !scores_.front()->takes_sums() || !deviations_.empty())
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
  const bool layer = group_.span() == GroupSpan::layer;
  const auto heads = static_cast<int>(layer ? sums.rows()
                                            : sums.rows() / static_cast<int64_t>(scores_.size()));
  std::vector<double> head_row, grouped(static_cast<size_t>(work_.entries()));
  for (size_t owner = 0; owner < scores_.size(); ++owner) {
    for (int x = 0; x < heads && (owner == 0 || !layer); ++x) {
      const int head = layer ? x : static_cast<int>(owner) * heads + x;
      head_row.assign(sums.row(head).begin(), sums.row(head).begin() + work_.entries());
      rows_->scale(head, {0, work_.entries()}, head_row);
      group_.add(x, heads, head_row, grouped);
    }
    scores_[owner]->add_sum(grouped, visible);
  }
}

void PromptStatistics::start(const AttentionBlock& block, int64_t) { rows_->start(block); }

void PromptStatistics::add(size_t owner, std::span<const double> row, int64_t visible) {
  scores_[owner]->add(row, visible);
  if (!deviations_.empty()) deviations_[owner]->add(row, visible);
}

void PromptStatistics::run(const AttentionBlock& block, int64_t, int) {
  const int64_t n = work_.entries();
  const bool layer = group_.span() == GroupSpan::layer;
  const bool alone = group_.span() == GroupSpan::head;
  const int count = layer ? work_.query_heads() : block.heads;
  const int first = layer ? block.kv_head * block.heads : 0;
  if (first == 0) grouped_ = Table<double>(block.rows, n);
  std::vector<double> head_row(static_cast<size_t>(n));
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t visible = std::min(n, block.positions[static_cast<size_t>(r)] + 1);
    for (int x = 0; x < block.heads; ++x) {
      rows_->row(block, x, r, {0, n}, head_row);
      if (alone)
        add(static_cast<size_t>(block.kv_head * block.heads + x), head_row, visible);
      else
        group_.add(first + x, count, head_row, grouped_.row(r));
    }
    if (alone || (layer && block.kv_head + 1 < work_.kv_heads())) continue;
    const size_t begin = layer ? 0 : static_cast<size_t>(block.kv_head);
    const size_t end = layer ? scores_.size() : begin + 1;
    for (size_t owner = begin; owner < end; ++owner) add(owner, grouped_.row(r), visible);
  }
}

}  // namespace kvsim
