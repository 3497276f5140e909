#include <ranges>

#include "sim/policy/scoring.hpp"

namespace kvsim {
namespace {

constexpr int64_t kSumValues = int64_t{1} << 20;  // of sums made in one pass: 8 MB

struct SharedPass {
  AttentionPass pass;
  std::vector<RowConsumer*> consumers;
};

bool can_share(const AttentionPass& a, const AttentionPass& b) {
  return std::ranges::equal(a.positions, b.positions) && a.look_ahead == b.look_ahead &&
         a.rows_outer == b.rows_outer && a.probe == b.probe &&
         std::ranges::equal(a.probe_tokens, b.probe_tokens);
}

void feed(const std::vector<RowConsumer*>& consumers, const AttentionBlock& block,
          int64_t first_row) {
  for (RowConsumer* consumer : consumers) {
    consumer->start(block, first_row);
    parallel_for(consumer->tasks(block),
                 [&](int64_t task) { consumer->run(block, first_row, static_cast<int>(task)); });
    consumer->end(block, first_row);
  }
}

/// Request of one consumer, and where it finds its parts in the request of all.
struct WantedSums {
  RowConsumer* consumer;
  AttentionSumRequest request;
  std::vector<size_t> numbers = {};
};

/// values[rows] at their places among all rows, 0 elsewhere.
std::vector<double> spread(const std::vector<double>& values, const std::vector<int64_t>& rows,
                           const std::vector<int64_t>& all) {
  std::vector<double> out(all.size(), 0.0);
  for (size_t j = 0, at = 0; j < rows.size(); ++j, ++at) {
    while (all[at] != rows[j]) ++at;
    out[at] = values[j];
  }
  return out;
}

/// One pass over all queries that the sums of these consumers look at.
void feed_sums(LayerWork& work, std::span<WantedSums> wanted) {
  AttentionSumRequest request;
  for (const WantedSums& one : wanted) {
    std::vector<int64_t> rows;
    std::ranges::set_union(request.rows, one.request.rows, std::back_inserter(rows));
    request.rows = std::move(rows);
    request.columns = std::max(request.columns, one.request.columns);
  }
  for (WantedSums& one : wanted)
    for (const AttentionSum& own : one.request.sums) {
      AttentionSum sum{own.of, spread(own.weights, one.request.rows, request.rows), {}};
      if (own.of == AttentionSum::Of::below)
        sum.bounds = spread(own.bounds, one.request.rows, request.rows);
      const auto found = std::ranges::find(request.sums, sum);
      one.numbers.push_back(found - request.sums.begin());
      if (found == request.sums.end()) request.sums.push_back(std::move(sum));
    }
  const auto sums = work.backend().attention_sums(work.trace(), request);
  for (const WantedSums& one : wanted) {
    TakenSums taken;
    for (const size_t number : one.numbers) taken.push_back(&sums[number]);
    one.consumer->take_sums(taken);
  }
}

/// As few passes as memory allows; those who look at many queries go together.
void feed_all_sums(LayerWork& work, std::vector<WantedSums> wanted) {
  std::ranges::stable_sort(wanted, std::greater(),
                           [](const WantedSums& one) { return one.request.rows.size(); });
  for (size_t begin = 0, end = 0; begin < wanted.size(); begin = end) {
    int64_t values = 0;
    for (; end < wanted.size(); ++end) {
      const AttentionSumRequest& request = wanted[end].request;
      const bool known = std::any_of(wanted.begin() + static_cast<int64_t>(begin),
                                     wanted.begin() + static_cast<int64_t>(end),
                                     [&](const WantedSums& other) {
        return other.request.rows == request.rows && other.request.sums == request.sums;
      });
      if (!known) values += std::ssize(request.sums) * work.query_heads() * request.columns;
      if (values > kSumValues && end > begin) break;
    }
    feed_sums(work, std::span(wanted).subspan(begin, end - begin));
  }
}

/// Rows or sums? Sums will do where rows are terms of the backend's and count only through their
/// weighted sum, where heads are grouped by a linear rule if before that, and where no row is of a
/// probe, whose attention no kernel adds up.
bool sums_will_do(const RowUse& use, const Segment& segment) {
  if (!use.terms || !use.weights || use.each_row || segment.probe_rows() > 0) return false;
  const HeadGrouping* const grouping = use.grouping;
  if (grouping && (!grouping->linear() || (grouping->whole_layer() && !use.groups_layer)))
    return false;
  return !use.squares || (use.terms->is_attention() && grouping->combines());
}

std::optional<AttentionSumRequest> wanted_sums(const LayerWork& work, const RowConsumer& consumer) {
  const RowUse use = consumer.use();
  const Segment& segment = consumer.segment();
  if (!sums_will_do(use, segment)) return std::nullopt;
  const auto stored = stored_queries(work, segment.positions, consumer.looks_ahead());
  AttentionSumRequest request{.rows = {}, .columns = segment.candidates.end, .sums = {}};
  std::vector<int64_t> positions;
  std::vector<double> weights;
  for (size_t j = 0; j < stored.size(); ++j) {
    const double weight = (*use.weights)[static_cast<size_t>(segment.rows_before) + j];
    if (weight == 0) continue;
    request.rows.push_back(stored[j]);
    positions.push_back(segment.positions[j]);
    weights.push_back(weight);
  }
  if (use.squares)
    for (const auto of : {AttentionSum::Of::group_mean, AttentionSum::Of::group_square})
      request.sums.push_back({of, weights, {}});
  else
    request.sums.push_back(use.terms->sum(positions, std::move(weights)));
  return request;
}

constexpr int64_t kColumns = 1024;  // of one task of the deviations

class DeviationConsumer : public RowConsumer {
 public:
  DeviationConsumer(LayerWork& work, const Settings& settings, const Segment& segment,
                    Table<double>& deviation)
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
  AttentionPass wanted() const override {
    AttentionPass pass = observed();
    pass.logits = indicator_.use().logits;
    pass.outputs = indicator_.use().outputs;
    pass.rows_outer = heads_.whole_layer();
    if (pass.outputs && !segment().positions.empty())
      pass.columns = std::max(work_.entries(), segment().positions.back() + 1);
    return pass;
  }
  RowUse use() const override {
    return {.terms = rows_.summed(),
            .weights = std::vector<double>(static_cast<size_t>(segment().rows()), 1.0),
            .grouping = &heads_,
            .squares = true};
  }
  void take_sums(const TakenSums& taken) override {
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
  void start(const AttentionBlock& block, int64_t first_row) override {
    rows_.start(block, first_row);
    if (!heads_.begins(block.kv_head)) return;
    if (heads_.combines()) combined_ = Table<double>(block.rows, segment().candidates.size());
    if (first_row > 0) return;
    const std::vector<double> zero(seen_.size(), 0.0);
    sum_.assign(heads_.units(), zero);
    squares_ = sum_;
  }
  int tasks(const AttentionBlock&) const override {
    return static_cast<int>((segment().candidates.size() + kColumns - 1) / kColumns);
  }
  void run(const AttentionBlock& block, int64_t, int task) override {
    const Range candidates = segment().candidates;
    const int64_t begin = candidates.begin + task * kColumns;
    const Range part{begin, std::min(candidates.end, begin + kColumns)};
    const auto first = static_cast<size_t>(task * kColumns),
               size = static_cast<size_t>(part.size());
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
  void end(const AttentionBlock& block, int64_t first_row) override {
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

 private:
  void add(int unit, size_t first, std::span<const double> part) {
    double* const sum = sum_[unit].data() + first;
    double* const squares = squares_[unit].data() + first;
    for (size_t c = 0; c < part.size(); ++c) {
      sum[c] += part[c];
      squares[c] += part[c] * part[c];
    }
  }
  /// squares_ become standard deviations.
  void make_deviations() {
    for (size_t owner = 0; owner < sum_.size(); ++owner)
      for (size_t c = 0; c < seen_.size(); ++c) {
        const double count = std::max(1.0, seen_[c]);
        const double mean = sum_[owner][c] / count;
        squares_[owner][c] = std::sqrt(std::max(0.0, squares_[owner][c] / count - mean * mean));
      }
  }

  LayerWork& work_;
  const RowIndicator& indicator_;
  HeadGrouping heads_;
  SharedRows rows_;
  Table<double>& deviation_;
  Table<double> combined_;                          // [block rows][candidates], heads so far
  std::vector<std::vector<double>> sum_, squares_;  // per unit of the KV head at work
  std::vector<double> seen_;                        // [candidates] queries that see the entry
};

}  // namespace

void run_consumers(LayerWork& work, const std::vector<RowConsumer*>& consumers) {
  std::vector<SharedPass> passes;
  std::vector<WantedSums> sums;
  for (RowConsumer* consumer : consumers) {
    if (auto request = wanted_sums(work, *consumer)) {
      sums.push_back({consumer, std::move(*request)});
      continue;
    }
    const AttentionPass wanted = consumer->wanted();
    auto found = std::ranges::find_if(
        passes, [&](const SharedPass& shared) { return can_share(shared.pass, wanted); });
    if (found == passes.end()) found = passes.insert(passes.end(), {wanted, {}});
    found->pass.logits |= wanted.logits;
    found->pass.outputs |= wanted.outputs;
    found->pass.columns = std::max(found->pass.columns, wanted.columns);
    found->consumers.push_back(consumer);
  }
  feed_all_sums(work, std::move(sums));
  for (const SharedPass& shared : passes)
    for_each_attention_block(work, shared.pass,
                             [&](const AttentionBlock& block, int64_t first_row) {
      feed(shared.consumers, block, first_row);
    });
}

std::unique_ptr<RowConsumer> deviation_consumer(LayerWork& work, const Settings& settings,
                                                const Segment& segment, Table<double>& deviation) {
  return std::make_unique<DeviationConsumer>(work, settings, segment, deviation);
}

}  // namespace kvsim
