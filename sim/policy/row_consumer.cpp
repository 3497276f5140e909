#include "sim/policy/row_consumer.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <ranges>
#include <span>
#include <utility>

#include "sim/core/parallel.hpp"

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

/// What one consumer asks for, and where it finds it in the request of all.
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
      one.numbers.push_back(static_cast<size_t>(found - request.sums.begin()));
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

}  // namespace

void run_consumers(LayerWork& work, const std::vector<RowConsumer*>& consumers) {
  std::vector<SharedPass> passes;
  std::vector<WantedSums> sums;
  for (RowConsumer* consumer : consumers) {
    if (auto request = consumer->wanted_sums()) {
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
