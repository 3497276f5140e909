// What later queries attend to most and no longer find (metrics.md 5.2).
#include "analysis/late_importance.hpp"

#include <optional>

#include "run/measures/measure.hpp"

namespace kvsim::measures::late_importance {
namespace {

constexpr const char* kLayer = "policy budget layer";
const DeclareMeasure measure(
    {.name = "late_importance", .place = 530, .whole = true},
    {{"late_share", kLayer, "1", "dropped share of what later queries attend to most",
      "share of a query's max(1, floor(0.2 n)) prompt entries of largest attention that were "
      "dropped, mean over heads and steps"},
     {"late_share_chance", kLayer, "1", "late_share of random eviction",
      "dropped entries / n, mean over heads"},
     {"late_recall", kLayer, "1", "share of dropped entries that some later query attends to most",
      "dropped entries that are among those of any step / dropped entries, mean over heads"}});

std::vector<DroppedEntries> dropped_entries(const LayerReplay& replay, int64_t entries) {
  std::vector<DroppedEntries> outcomes;
  for (size_t o = 0; o < replay.count(); ++o) {
    const KeptSets& kept = *replay.outcome(o).kept;
    DroppedEntries& gone = outcomes.emplace_back();
    gone.per_query_head = kept.per_query_head;
    gone.owners = Table<uint8_t>(static_cast<int64_t>(kept.owners.size()), entries, 1);
    for (size_t owner = 0; owner < kept.owners.size(); ++owner) {
      const auto row = gone.owners.row(static_cast<int64_t>(owner));
      for (const uint32_t i : kept.owners[owner]) row[i] = 0;
      if (kept.merged.empty()) continue;
      for (const uint32_t i : kept.merged[owner]) row[i] = 0;
    }
  }
  return outcomes;
}

class LateMeasure : public Measure {
 public:
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    late_.emplace(dropped_entries(layer.replay, run().info.prompt_len), layer.work.query_heads(),
                  run().info.prompt_len, run().info.steps());
  }
  void see_rows(const AttentionBlock& rows, int64_t first_step) override {
    late_->add(rows, first_step);
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    std::vector<LateImportance::Result> late;
    for (size_t o = 0; o < layer.replay.count(); ++o) late.push_back(late_->result(o));
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      results.set("late_share", {cell.record, cell.budget, layer.index}, late[o].share);
      results.set("late_share_chance", {cell.record, cell.budget, layer.index}, late[o].chance);
      results.set("late_recall", {cell.record, cell.budget, layer.index}, late[o].recall);
    });
  }

 private:
  std::optional<LateImportance> late_;  ///< of the layer at work
};
const RegisterMeasure<LateMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::late_importance
