#include "sim/policy/row_consumer.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

struct SharedPass {
  AttentionPass pass;
  std::vector<RowConsumer*> consumers;
};

bool can_share(const AttentionPass& a, const AttentionPass& b) {
  return std::ranges::equal(a.positions, b.positions) && a.look_ahead == b.look_ahead &&
         a.rows_outer == b.rows_outer;
}

void feed(const std::vector<RowConsumer*>& consumers, const AttentionBlock& block,
          int64_t first_row) {
  std::vector<std::pair<RowConsumer*, int>> tasks;
  for (RowConsumer* consumer : consumers) {
    consumer->start(block, first_row);
    for (int t = 0; t < consumer->tasks(block); ++t) tasks.emplace_back(consumer, t);
  }
  parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t at) {
    const auto& [consumer, task] = tasks[static_cast<size_t>(at)];
    consumer->run(block, first_row, task);
  });
  for (RowConsumer* consumer : consumers) consumer->end(block, first_row);
}

struct SharedSums {
  AttentionSumRequest request;
  std::vector<RowConsumer*> consumers;
};

bool same(const AttentionSumRequest& a, const AttentionSumRequest& b) {
  return a.rows == b.rows && a.weights == b.weights && a.columns == b.columns;
}

void feed_sums(LayerWork& work, const std::vector<SharedSums>& all) {
  for (const SharedSums& shared : all) {
    Table<double> sums(work.query_heads(), shared.request.columns);
    work.backend().attention_sums(work.trace(), shared.request, sums.data());
    for (RowConsumer* consumer : shared.consumers) consumer->take_sums(sums);
  }
}

}  // namespace

void run_consumers(LayerWork& work, const std::vector<RowConsumer*>& consumers) {
  std::vector<SharedPass> passes;
  std::vector<SharedSums> sums;
  for (RowConsumer* consumer : consumers) {
    if (const auto request = consumer->wanted_sums()) {
      auto found = std::ranges::find_if(
          sums, [&](const SharedSums& shared) { return same(shared.request, *request); });
      if (found == sums.end()) found = sums.insert(sums.end(), {*request, {}});
      found->consumers.push_back(consumer);
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
  feed_sums(work, sums);
  for (const SharedPass& shared : passes)
    for_each_attention_block(work, shared.pass,
                             [&](const AttentionBlock& block, int64_t first_row) {
                               feed(shared.consumers, block, first_row);
                             });
}

}  // namespace kvsim
