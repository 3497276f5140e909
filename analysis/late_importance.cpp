#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

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

/// [owners][n] 1: dropped; merged entries are still there.
Table<uint8_t> dropped_entries(const KeptSets& kept, int64_t entries) {
  Table<uint8_t> gone(std::ssize(kept.owners), entries, 1);
  for (int64_t owner = 0; owner < gone.rows(); ++owner) {
    const auto row = gone.row(owner);
    for (const uint32_t i : kept.owners[owner]) row[i] = 0;
    if (kept.merged.empty()) continue;
    for (const uint32_t i : kept.merged[owner]) row[i] = 0;
  }
  return gone;
}

/// How many of the entries that later queries attend to most had been dropped (metrics.md 5.2); of
/// equal ones the more recent count.
struct LateImportance : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    const int64_t heads = layer.work.query_heads(), entries = run().info.prompt_len;
    dropped_.clear();
    for (size_t o = 0; o < layer.replay.count(); ++o)
      dropped_.push_back(dropped_entries(*layer.replay.outcome(o).kept, entries));
    top_ = std::max<int64_t>(1, entries / 5);
    hits_ = Table<int64_t>(std::ssize(dropped_), heads);
    ever_ = Table<uint8_t>(heads, entries);
  }
  void see_rows(const AttentionBlock& rows, int64_t /*first_step*/) override {
    parallel_for(rows.heads, [&](int64_t x) {
      const int64_t head = rows.kv_head * rows.heads + x;
      std::vector<uint32_t> order(run().info.prompt_len);
      for (int64_t r = 0; r < rows.rows; ++r) {
        const float* row = rows.attention_row(static_cast<int>(x), r);
        std::iota(order.begin(), order.end(), 0u);
        std::nth_element(order.begin(), order.begin() + (top_ - 1), order.end(), best_first(row));
        const std::span best(order.data(), top_);
        for (const uint32_t i : best) ever_(head, i) = 1;
        for (int64_t o = 0; o < hits_.rows(); ++o) {
          const auto gone = of_head(o, head);
          for (const uint32_t i : best) hits_(o, head) += gone[i];
        }
      }
    });
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      write(static_cast<int64_t>(o), {cell.record, cell.budget, layer.index}, results);
    });
  }

 private:
  std::span<const uint8_t> of_head(int64_t outcome, int64_t head) const {
    const Table<uint8_t>& owners = dropped_[outcome];
    return owners.row(head * owners.rows() / hits_.columns());
  }
  void write(int64_t outcome, std::initializer_list<int64_t> at, MeasureResults& results) const {
    const auto seen = static_cast<double>(top_ * run().info.steps());
    std::vector<double> share, chance, recall;
    for (int64_t head = 0; head < ever_.rows(); ++head) {
      const auto gone = of_head(outcome, head);
      double size = 0, found = 0;
      for (int64_t i = 0; i < ever_.columns(); ++i) {
        size += gone[i];
        found += gone[i] & ever_(head, i);
      }
      share.push_back(static_cast<double>(hits_(outcome, head)) / seen);
      chance.push_back(size / static_cast<double>(ever_.columns()));
      recall.push_back(size == 0 ? kUndefined : found / size);
    }
    results.set("late_share", at, mean(share));
    results.set("late_share_chance", at, mean(chance));
    results.set("late_recall", at, mean(recall));
  }

  std::vector<Table<uint8_t>> dropped_;  ///< [outcome] each [owners][n]
  int64_t top_ = 1;                      ///< entries that count as attended to most
  Table<int64_t> hits_;                  ///< [outcome][Hq] dropped ones among them, over all steps
  Table<uint8_t> ever_;                  ///< [Hq][n] 1: among them at some step
};
const RegisterMeasure<LateImportance> registered(measure);

}  // namespace
}  // namespace kvsim::measures::late_importance
