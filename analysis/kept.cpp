// Kept entries, by number and by name.

#include "analysis/measure.hpp"

namespace kvsim::measures::kept {
namespace {

const DeclareMeasure measure(
    {.name = "kept", .place = 300, .when = &kAlways},
    {{"kept", "policy budget layer kv_head", "count", "kept prompt entries of a KV head",
      "prompt entries that are their own slot; NaN for policies with granularity=query"},
     {"kept_query", "policy budget layer head", "count", "kept prompt entries of a query head",
      "the same for policies with granularity=query", Needs{&kQueryHeads}},
     {"tied_at_threshold", "policy budget layer kv_head", "count",
      "candidates tied with the last one kept",
      "candidates whose score equals that of the last one kept by score, itself included; 0 if "
      "none was kept by score"},
     {"tied_at_threshold_query", "policy budget layer head", "count",
      "candidates tied with the last one kept", "the same for policies with granularity=query",
      Needs{&kQueryHeads}},
     {"kept_mask", "policy budget layer kv_head position", "1", "what became of each prompt entry",
      "255 for policies with granularity=query", VariableType::uint8, Needs{&kSaveKeep},
      Flags{{0, "dropped"}, {1, "kept"}, {2, "merged"}}},
     {"kept_mask_query", "policy budget layer head position", "1",
      "what became of each prompt entry", "the same for policies with granularity=query",
      VariableType::uint8, Needs{&kSaveKeep, &kQueryHeads},
      Flags{{0, "dropped"}, {1, "kept"}, {2, "merged"}}}});

struct Kept : Measure {
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const ReplayOutcome& outcome = layer.replay.outcome(o);
      const KeptSets& sets = *outcome.kept;
      const auto place = static_cast<size_t>(std::ranges::find(outcome.cells, cell) -
                                             outcome.cells.begin());
      const std::vector<int64_t>& tied = place < outcome.tied.size() ? outcome.tied[place]
                                                                     : sets.tied;
      const bool query = sets.per_query_head;
      for (size_t owner = 0; owner < sets.owners.size(); ++owner) {
        const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index,
                                                   static_cast<int64_t>(owner)};
        results.set(query ? "kept_query" : "kept", at,
                    static_cast<double>(sets.owners[owner].size()));
        results.set(query ? "tied_at_threshold_query" : "tied_at_threshold", at,
                    tied.empty() ? 0.0 : static_cast<double>(tied[owner]));
        const char* const mask = query ? "kept_mask_query" : "kept_mask";
        if (results.has(mask)) fill_mask(sets, owner, results.row<uint8_t>(mask, at));
      }
    });
  }

 private:
  static void fill_mask(const KeptSets& sets, size_t owner, std::span<uint8_t> mask) {
    std::ranges::fill(mask, uint8_t{0});
    for (const uint32_t entry : sets.owners[owner]) mask[entry] = 1;
    if (sets.merged.empty()) return;
    for (const uint32_t entry : sets.merged[owner]) mask[entry] = 2;
  }
};
const RegisterMeasure<Kept> registered(measure);

}  // namespace
}  // namespace kvsim::measures::kept
