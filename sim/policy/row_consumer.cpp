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

/// Sums over the same queries, and where each consumer finds its own.
struct SharedSums {
  AttentionSumRequest request;
  std::vector<std::pair<RowConsumer*, std::vector<size_t>>> consumers;

  void add(RowConsumer* consumer, const AttentionSumRequest& wanted) {
    request.columns = std::max(request.columns, wanted.columns);
    std::vector<size_t> numbers;
    for (const AttentionSum& sum : wanted.sums) {
      const auto found = std::ranges::find(request.sums, sum);
      numbers.push_back(static_cast<size_t>(found - request.sums.begin()));
      if (found == request.sums.end()) request.sums.push_back(sum);
    }
    consumers.emplace_back(consumer, std::move(numbers));
  }
};

void feed_sums(LayerWork& work, const std::vector<SharedSums>& all) {
  for (const SharedSums& shared : all) {
    const auto sums = work.backend().attention_sums(work.trace(), shared.request);
    for (const auto& [consumer, numbers] : shared.consumers) {
      TakenSums taken;
      for (const size_t number : numbers) taken.push_back(&sums[number]);
      consumer->take_sums(taken);
    }
  }
}

}  // namespace

void run_consumers(LayerWork& work, const std::vector<RowConsumer*>& consumers) {
  std::vector<SharedPass> passes;
  std::vector<SharedSums> sums;
  for (RowConsumer* consumer : consumers) {
    if (const auto request = consumer->wanted_sums()) {
      auto found = std::ranges::find_if(
          sums, [&](const SharedSums& shared) { return shared.request.rows == request->rows; });
      if (found == sums.end())
        found = sums.insert(sums.end(), {{.rows = request->rows, .columns = 0, .sums = {}}, {}});
      found->add(consumer, *request);
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
