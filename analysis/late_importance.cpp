#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {

LateImportance::LateImportance(std::vector<DroppedEntries> outcomes, int query_heads,
                               int64_t entries, int64_t steps)
    : outcomes_(std::move(outcomes)), heads_(query_heads), entries_(entries), steps_(steps),
      top_(std::max<int64_t>(1, entries / 5)), hits_(std::ssize(outcomes_), query_heads),
      ever_(query_heads, entries) {}

std::span<const uint8_t> LateImportance::dropped(size_t outcome, int64_t head) const {
  const DroppedEntries& set = outcomes_[outcome];
  return set.owners.row(head * set.owners.rows() / heads_);
}

void LateImportance::add(const AttentionBlock& block, int64_t) {
  parallel_for(block.heads, [&](int64_t x) {
    const int64_t head = block.kv_head * block.heads + x;
    std::vector<uint32_t> order(entries_);
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* row = block.attention_row(static_cast<int>(x), r);
      std::iota(order.begin(), order.end(), 0u);
      std::nth_element(order.begin(), order.begin() + (top_ - 1), order.end(), best_first(row));
      const std::span best(order.data(), top_);
      for (const uint32_t i : best) ever_(head, i) = 1;
      for (size_t o = 0; o < outcomes_.size(); ++o) {
        const auto gone = dropped(o, head);
        int64_t hits = 0;
        for (const uint32_t i : best) hits += gone[i];
        hits_(static_cast<int64_t>(o), head) += hits;
      }
    }
  });
}

LateImportance::Result LateImportance::result(size_t outcome) const {
  std::vector<double> share, chance, recall;
  for (int64_t head = 0; head < heads_; ++head) {
    const auto gone = dropped(outcome, head);
    int64_t size = 0, found = 0;
    for (int64_t i = 0; i < entries_; ++i) {
      size += gone[i];
      found += gone[i] & ever_(head, i);
    }
    share.push_back(static_cast<double>(hits_(static_cast<int64_t>(outcome), head)) /
                    static_cast<double>(top_ * steps_));
    chance.push_back(static_cast<double>(size) / static_cast<double>(entries_));
    recall.push_back(size == 0 ? kUndefined
                               : static_cast<double>(found) / static_cast<double>(size));
  }
  return {mean(share), mean(chance), mean(recall)};
}

}  // namespace kvsim

namespace kvsim::measures::late_importance {
namespace {

const DeclareMeasure measure(
    {.name = "late_importance", .place = 530, .whole = true},
    {{"late_share", kOverLayers, "1", "dropped share of what later queries attend to most",
      "share of a query's max(1, floor(0.2 n)) prompt entries of largest attention that were "
      "dropped, mean over heads and steps"},
     {"late_share_chance", kOverLayers, "1", "late_share of random eviction",
      "dropped entries / n, mean over heads"},
     {"late_recall", kOverLayers, "1",
      "share of dropped entries that some later query attends to most",
      "dropped entries that are among those of any step / dropped entries, mean over heads"}});

std::vector<DroppedEntries> dropped_entries(const LayerReplay& replay, int64_t entries) {
  std::vector<DroppedEntries> outcomes;
  for (size_t o = 0; o < replay.count(); ++o) {
    const KeptSets& kept = *replay.outcome(o).kept;
    DroppedEntries& gone = outcomes.emplace_back();
    gone.per_query_head = kept.per_query_head;
    gone.owners = Table<uint8_t>(std::ssize(kept.owners), entries, 1);
    for (int64_t owner = 0; owner < std::ssize(kept.owners); ++owner) {
      const auto row = gone.owners.row(owner);
      for (const uint32_t i : kept.owners[owner]) row[i] = 0;
      if (kept.merged.empty()) continue;
      for (const uint32_t i : kept.merged[owner]) row[i] = 0;
    }
  }
  return outcomes;
}

struct LateMeasure : MeasureOfRows<LateImportance> {
  using MeasureOfRows::MeasureOfRows;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    seen_.emplace(dropped_entries(layer.replay, run().info.prompt_len), layer.work.query_heads(),
                  run().info.prompt_len, run().info.steps());
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    std::vector<LateImportance::Result> late;
    for (size_t o = 0; o < layer.replay.count(); ++o) late.push_back(seen_->result(o));
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      results.set("late_share", {cell.record, cell.budget, layer.index}, late[o].share);
      results.set("late_share_chance", {cell.record, cell.budget, layer.index}, late[o].chance);
      results.set("late_recall", {cell.record, cell.budget, layer.index}, late[o].recall);
    });
  }
};
const RegisterMeasure<LateMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::late_importance
