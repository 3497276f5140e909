#include "sim/policy/segment_scorer.hpp"

#include <algorithm>

#include "sim/core/parallel.hpp"

namespace kvsim {

SegmentScorer::SegmentScorer(LayerWork& work, const ScoreJob& job, const Segment& segment,
                             RowsOfLayer& rows, std::vector<Table<double>>& results)
    : RowConsumer(segment, job.settings->is("queries", "future")),
      work_(work),
      job_(job),
      settings_(*job.settings),
      indicator_(Kinds<Indicator>::find(settings_.text("indicator"))),
      aggregate_(Kinds<Aggregate>::find(settings_.text("aggregate"))),
      smooth_(Kinds<Smooth>::find(settings_.text("smooth"))),
      group_(Kinds<Group>::find(settings_.text("group"))),
      results_(results),
      rows_(rows.rows(settings_, segment)),
      has_group_(indicator_.axes() == Axes::head_row && group_.span() != GroupSpan::head),
      per_query_head_(settings_.is("granularity", "query")) {
  const std::string& order = settings_.text("order");
  const size_t a = order.find('a');
  before_ = order.substr(0, a);
  after_ = order.substr(a + 1);
  const auto columns = static_cast<size_t>(segment.candidates.size());
  if (whole_layer() && !groups_before())
    layer_rows_.assign(job.free_slots.size(), Row(columns, 0.0));
}

AttentionPass SegmentScorer::wanted() const {
  AttentionPass pass{.positions = segment().positions};
  pass.look_ahead = looks_ahead();
  pass.logits = indicator_.needs_logits();
  pass.outputs = indicator_.needs_outputs();
  pass.rows_outer = whole_layer() && groups_before();
  if (pass.outputs && !segment().positions.empty())   // what the output is made of, all of it
    pass.columns = std::max(work_.entries(), segment().positions.back() + 1);
  return pass;
}

/// Sums will do when aggregation comes first, is linear, and nothing follows single rows.
std::optional<AttentionSumRequest> SegmentScorer::wanted_sums() const {
  if (!before_.empty() || !(*rows_)->is_scaled_attention() || smooth_.drift() != Drift::none)
    return std::nullopt;
  const auto aggregation =
      aggregate_.start(settings_, segment().rows(), segment().candidates.size());
  const std::span<const double> weights = aggregation->weights();
  if (weights.empty()) return std::nullopt;
  AttentionSumRequest request;
  request.columns = segment().candidates.end;
  const std::vector<int64_t> stored =
      stored_queries(work_, segment().positions, looks_ahead());
  for (size_t j = 0; j < stored.size(); ++j) {
    const double weight = weights[static_cast<size_t>(segment().rows_before) + j];
    if (weight == 0) continue;
    request.rows.push_back(stored[j]);
    request.weights.push_back(weight * (*rows_)->row_factor(segment().positions[j]));
  }
  return request;
}

void SegmentScorer::take_sums(const Table<double>& sums) {
  const Range candidates = segment().candidates;
  std::vector<int64_t> visible_to;
  for (const int64_t position : segment().positions) visible_to.push_back(visible(position));
  for (int kv_head = 0; kv_head < work_.kv_heads(); ++kv_head) {
    open_units(work_.group_size());
    for (int u = 0; u < work_.group_size(); ++u) {
      const int query_head = kv_head * work_.group_size() + u;
      Unit& unit = units_[static_cast<size_t>(u)];
      const auto from = sums.row(query_head).subspan(static_cast<size_t>(candidates.begin));
      std::copy_n(from.begin(), unit.row.size(), unit.row.begin());
      (*rows_)->scale(query_head, candidates, unit.row);
      unit.aggregation->add_sum(unit.row, visible_to);
    }
    close_kv_head(kv_head);
  }
}

void SegmentScorer::open_units(int count) {
  const int64_t rows = segment().rows();
  const int64_t columns = segment().candidates.size();
  const Row nothing(static_cast<size_t>(columns), 0.0);
  units_.clear();
  units_.resize(static_cast<size_t>(count));
  for (Unit& unit : units_) {
    unit.aggregation = aggregate_.start(settings_, rows, columns);
    for (int64_t j = 0; j < segment().rows_before; ++j) unit.aggregation->add(j, nothing, 0);
    if (smooth_.drift() != Drift::none)
      unit.drift = std::make_unique<DriftTracker>(job_.free_slots, rows);
    unit.row.resize(static_cast<size_t>(columns));
    unit.smoothed.resize(static_cast<size_t>(columns));
  }
}

void SegmentScorer::start(const AttentionBlock& block, int64_t first_row) {
  rows_->start(block, first_row);
  const bool one_unit =
      indicator_.axes() == Axes::group_row || (has_group_ && groups_before());
  const bool first_of_unit =
      first_row == 0 && (!(whole_layer() && groups_before()) || block.kv_head == 0);
  if (first_of_unit) open_units(one_unit ? 1 : block.heads);
}

int SegmentScorer::tasks(const AttentionBlock&) const { return static_cast<int>(units_.size()); }

int64_t SegmentScorer::visible(int64_t position) const {
  return std::clamp<int64_t>(position + 1 - segment().candidates.begin, 0,
                             segment().candidates.size());
}

/// The row after smoothing, if `order` smooths it before aggregation.
std::span<double> SegmentScorer::smooth_row(Row& row, Row& smoothed) const {
  smooth_.apply(settings_, 0, row, smoothed);
  return smoothed;
}

void SegmentScorer::run(const AttentionBlock& block, int64_t first_row, int task) {
  Unit& unit = units_[static_cast<size_t>(task)];
  if (has_group_ && groups_before())
    fold_group(block, first_row, unit);
  else
    fold_head(block, first_row, task, unit);
}

void SegmentScorer::fold_head(const AttentionBlock& block, int64_t first_row, int head,
                              Unit& unit) {
  const bool smooths = before_.find('s') != std::string::npos && !smooth_.changes_nothing();
  for (int64_t r = 0; r < block.rows; ++r) {
    (*rows_)->row(block, head, r, segment().candidates, unit.row);
    const std::span<double> row = smooths ? smooth_row(unit.row, unit.smoothed) : unit.row;
    const int64_t seen = visible(block.positions[static_cast<size_t>(r)]);
    unit.aggregation->add(segment().rows_before + first_row + r, row, seen);
    if (smooth_.drift() == Drift::indicator) unit.drift->add(first_row + r, row);
    if (smooth_.drift() == Drift::attention)
      follow_attention(block, head, r, first_row + r, unit);
  }
}

void SegmentScorer::follow_attention(const AttentionBlock& block, int head, int64_t row, int64_t j,
                                     Unit& unit) {
  const float* a = block.attention_row(head, row);
  const int64_t seen =
      std::min(work_.entries(), block.positions[static_cast<size_t>(row)] + 1);
  unit.combined.assign(a, a + seen);
  unit.drift->add(j, unit.combined);
}

void SegmentScorer::fold_group(const AttentionBlock& block, int64_t first_row, Unit& unit) {
  const int64_t columns = segment().candidates.size();
  const bool layer = whole_layer();
  const int heads = layer ? work_.query_heads() : block.heads;
  const int first_head = layer ? block.kv_head * block.heads : 0;
  const bool smooths_heads = before_.starts_with('s') && !smooth_.changes_nothing();
  const bool smooths_group = before_ == "gs" && !smooth_.changes_nothing();
  if (first_head == 0) combined_ = Table<double>(block.rows, columns);
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int head = 0; head < block.heads; ++head) {
      (*rows_)->row(block, head, r, segment().candidates, unit.row);
      const std::span<double> row = smooths_heads ? smooth_row(unit.row, unit.smoothed) : unit.row;
      group_.add(first_head + head, heads, row, combined_.row(r));
    }
    if (layer && !last_kv_head(block.kv_head)) continue;
    const auto grouped = combined_.row(r);
    unit.row.assign(grouped.begin(), grouped.end());
    const std::span<double> row = smooths_group ? smooth_row(unit.row, unit.smoothed) : unit.row;
    const int64_t seen = visible(block.positions[static_cast<size_t>(r)]);
    unit.aggregation->add(segment().rows_before + first_row + r, row, seen);
    if (smooth_.drift() == Drift::indicator) unit.drift->add(first_row + r, row);
  }
}

void SegmentScorer::end(const AttentionBlock& block, int64_t first_row) {
  const auto rows = static_cast<int64_t>(segment().positions.size());
  const bool last_block = first_row + block.rows == rows;
  if (!last_block || (whole_layer() && groups_before() && !last_kv_head(block.kv_head))) return;
  close_kv_head(block.kv_head);
}

void SegmentScorer::smooth_into(size_t variant, const Unit& unit, Row& row) const {
  if (smooth_.changes_nothing()) return;
  Row smoothed(row.size());
  smooth_.apply(settings_, unit.drift ? unit.drift->drift(variant) : 0, row, smoothed);
  row = std::move(smoothed);
}

void SegmentScorer::close_kv_head(int kv_head) {
  std::vector<Row> rows;
  for (size_t u = 0; u < units_.size(); ++u) {
    Row row(static_cast<size_t>(segment().candidates.size()), 0.0);
    for (int64_t j = segment().rows() - segment().rows_after; j < segment().rows(); ++j)
      units_[u].aggregation->add(j, row, 0);
    units_[u].aggregation->finish(row);
    const int query_head = kv_head * work_.group_size() + static_cast<int>(u);
    (*rows_)->finish(query_head, segment().candidates, row);
    rows.push_back(std::move(row));
  }
  parallel_for(static_cast<int64_t>(job_.free_slots.size()), [&](int64_t variant) {
    close_variant(kv_head, static_cast<size_t>(variant), rows);
  });
}

/// The stages after aggregation, for one KV head (or the layer) and one variant.
void SegmentScorer::close_variant(int kv_head, size_t variant,
                                  const std::vector<Row>& aggregated) {
  std::vector<Row> rows = aggregated;
  for (char letter : after_) {
    if (letter == 's') {
      for (size_t u = 0; u < rows.size(); ++u) smooth_into(variant, units_[u], rows[u]);
    } else if (letter == 'g' && has_group_) {
      const int heads = whole_layer() ? work_.query_heads() : work_.group_size();
      const int first = whole_layer() ? kv_head * work_.group_size() : 0;
      Row combined = whole_layer() ? layer_rows_[variant] : Row(rows[0].size());
      for (size_t u = 0; u < rows.size(); ++u)
        group_.add(first + static_cast<int>(u), heads, rows[u], combined);
      if (whole_layer()) layer_rows_[variant] = combined;
      if (whole_layer() && !last_kv_head(kv_head)) return;
      rows.assign(1, std::move(combined));
    }
  }
  if (whole_layer()) {
    for (int64_t owner = 0; owner < results_[variant].rows(); ++owner)
      write(variant, owner, rows[0]);
    return;
  }
  const int64_t first = per_query_head_ ? kv_head * work_.group_size() : kv_head;
  for (size_t u = 0; u < rows.size(); ++u)
    write(variant, first + static_cast<int64_t>(u), rows[u]);
}

void SegmentScorer::write(size_t variant, int64_t owner, std::span<const double> row) {
  std::copy(row.begin(), row.end(),
            results_[variant].row(owner).begin() + segment().candidates.begin);
}

}  // namespace kvsim
