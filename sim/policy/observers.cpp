// What is watched of the rows beside a record's scores.
#include <ranges>

#include "sim/policy/scoring.hpp"

namespace kvsim {
namespace {

constexpr int64_t kColumns = 1024;  // of one task of the deviations

}  // namespace

MassConsumer::MassConsumer(LayerWork& work, const Segment& segment, bool looks_ahead,
                           bool per_query_head, ScoredLayer& result)
    : RowConsumer(segment, looks_ahead), work_(work), per_query_head_(per_query_head),
      result_(result) {
  const int64_t owners = per_query_head ? work.query_heads() : work.kv_heads();
  result_.mass = Table<double>(owners, work.entries());
}

void MassConsumer::run(const AttentionBlock& block, int64_t, int) {
  const Segment& s = segment();
  const auto rows = static_cast<double>(s.own_rows());
  const double per_owner = rows * (per_query_head_ ? 1 : block.heads);
  const double per_layer = rows * work_.query_heads();
  const Range before{std::max(s.candidates.begin, s.candidates.end - s.window), s.candidates.end};
  for (int head = 0; head < block.heads; ++head) {
    const int64_t owner = per_query_head_ ? block.kv_head * block.heads + head : block.kv_head;
    const auto mass = result_.mass.row(owner);
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* a = block.attention_row(head, r);
      for (int64_t i = s.candidates.begin; i < s.candidates.end; ++i)
        mass[i] += static_cast<double>(a[i]) / per_owner;
      for (int64_t i = before.begin; i < before.end; ++i)
        result_.mass_before_window += static_cast<double>(a[i]) / per_layer;
      for (int64_t i = s.candidates.end; i < s.range.end; ++i)
        result_.mass_of_window += static_cast<double>(a[i]) / per_layer;
    }
  }
}

DeviationConsumer::DeviationConsumer(LayerWork& work, const Settings& settings,
                                     const Segment& segment, Table<double>& deviation)
    : RowConsumer(segment, chosen<Queries>(settings).looks_ahead()), work_(work),
      indicator_(row_indicator(settings)), heads_(work, settings),
      rows_(indicator_.rows(work, settings, segment)), deviation_(deviation),
      seen_(segment.candidates.size(), 0.0) {
  if (indicator_.sees_all()) {  // behind the prompt, where they see all of it
    seen_.assign(seen_.size(), static_cast<double>(segment.own_rows()));
    return;
  }
  auto later = segment.positions.begin();  // queries at or after the entry; ascending
  for (int64_t c = 0; c < std::ssize(seen_); ++c) {
    const int64_t i = segment.candidates.begin + c;
    while (later != segment.positions.end() && *later < i) ++later;
    seen_[c] = static_cast<double>(segment.positions.end() - later + segment.probe_rows());
  }
}

AttentionPass DeviationConsumer::wanted() const {
  AttentionPass pass = observed();
  pass.logits = indicator_.use().logits;
  pass.outputs = indicator_.use().outputs;
  pass.rows_outer = heads_.whole_layer();
  if (pass.outputs && !segment().positions.empty())
    pass.columns = std::max(work_.entries(), segment().positions.back() + 1);
  return pass;
}

RowUse DeviationConsumer::use() const {
  return {.terms = rows_.summed(),
          .weights = std::vector<double>(static_cast<size_t>(segment().rows()), 1.0),
          .grouping = &heads_,
          .squares = true};
}

void DeviationConsumer::take_sums(const TakenSums& taken) {
  const Range candidates = segment().candidates;
  const auto first = static_cast<size_t>(candidates.begin);
  const int heads = work_.group_size();
  for (int kv_head = 0; kv_head < work_.kv_heads(); ++kv_head) {
    const auto of_candidates = [&](const Table<double>* sums) {
      const auto row = sums->row(kv_head).subspan(first, seen_.size());
      return std::vector<double>(row.begin(), row.end());
    };
    sum_.assign(1, of_candidates(taken[0]));
    squares_.assign(1, of_candidates(taken[1]));
    make_deviations();
    // That of the group's row, as if every head's were the mean's.
    const auto out = deviation_.row(kv_head).subspan(first, seen_.size());
    for (int head = 0; head < heads; ++head) heads_.add(kv_head, head, squares_.front(), out);
  }
}

void DeviationConsumer::start(const AttentionBlock& block, int64_t first_row) {
  rows_.start(block, first_row);
  if (!heads_.begins(block.kv_head)) return;
  if (heads_.combines()) combined_ = Table<double>(block.rows, segment().candidates.size());
  if (first_row > 0) return;
  const std::vector<double> zero(seen_.size(), 0.0);
  sum_.assign(heads_.units(), zero);
  squares_ = sum_;
}

int DeviationConsumer::tasks(const AttentionBlock&) const {
  return static_cast<int>((segment().candidates.size() + kColumns - 1) / kColumns);
}

void DeviationConsumer::add(int unit, size_t first, std::span<const double> part) {
  double* const sum = sum_[unit].data() + first;
  double* const squares = squares_[unit].data() + first;
  for (size_t c = 0; c < part.size(); ++c) {
    sum[c] += part[c];
    squares[c] += part[c] * part[c];
  }
}

void DeviationConsumer::run(const AttentionBlock& block, int64_t, int task) {
  const Range candidates = segment().candidates;
  const int64_t begin = candidates.begin + task * kColumns;
  const Range part{begin, std::min(candidates.end, begin + kColumns)};
  const auto first = static_cast<size_t>(task * kColumns), size = static_cast<size_t>(part.size());
  std::vector<double> row(size);
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int x = 0; x < heads_.rows_per_query(); ++x) {
      rows_->row(block, x, r, part, row);
      if (heads_.combines())
        heads_.add(block.kv_head, x, row, combined_.row(r).subspan(first, size));
      else
        add(x, first, row);
    }
    if (heads_.combines() && heads_.complete(block.kv_head))
      add(0, first, combined_.row(r).subspan(first, size));
  }
}

/// squares_ become standard deviations.
void DeviationConsumer::make_deviations() {
  for (size_t owner = 0; owner < sum_.size(); ++owner)
    for (size_t c = 0; c < seen_.size(); ++c) {
      const double count = std::max(1.0, seen_[c]);
      const double mean = sum_[owner][c] / count;
      squares_[owner][c] = std::sqrt(std::max(0.0, squares_[owner][c] / count - mean * mean));
    }
}

void DeviationConsumer::end(const AttentionBlock& block, int64_t first_row) {
  if (first_row + block.rows != segment().own_rows()) return;
  if (!heads_.complete(block.kv_head)) return;
  make_deviations();
  for (int unit = 0; unit < heads_.units(); ++unit) {
    const auto& deviation = squares_[unit];
    const Range owners = heads_.owners(block.kv_head, unit);
    for (int64_t owner = owners.begin; owner < owners.end; ++owner)
      std::ranges::copy(deviation, deviation_.row(owner).begin() + segment().candidates.begin);
  }
}

RowUse StatisticConsumer::use() const {
  static const SummedRows attention;
  if (!statistic_->takes_sums()) return {};
  return {.terms = &attention,
          .weights = std::vector<double>(static_cast<size_t>(segment().rows()), 1.0)};
}

void StatisticConsumer::end(const AttentionBlock& block, int64_t first_row) {
  if (statistic_->takes_sums())
    sum_up(block, first_row);
  else
    statistic_->add(block, first_row, segment().candidates);
}

/// The sums that no kernel makes: those over rows of a probe.
void StatisticConsumer::sum_up(const AttentionBlock& block, int64_t first_row) {
  const Range candidates = segment().candidates;
  if (first_row == 0) sums_ = Table<double>(block.heads, candidates.size());
  for (int head = 0; head < block.heads; ++head)
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* a = block.attention_row(head, r) + candidates.begin;
      for (double& sum : sums_.row(head)) sum += static_cast<double>(*a++);
    }
  if (first_row + block.rows < segment().own_rows()) return;
  for (int head = 0; head < block.heads; ++head) statistic_->add_sum(sums_.row(head));
}

void StatisticConsumer::take_sums(const TakenSums& taken) {
  const Table<double>& sums = *taken.front();
  for (int64_t head = 0; head < sums.rows(); ++head)
    statistic_->add_sum(sums.row(head).subspan(segment().candidates.begin));
}

}  // namespace kvsim
