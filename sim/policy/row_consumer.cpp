#include "sim/policy/row_consumer.hpp"

#include <ranges>

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

}  // namespace kvsim
