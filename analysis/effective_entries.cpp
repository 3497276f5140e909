// How many entries attention is spread over: the perplexity exp(H) of its distribution over prompt
// entries, with the full cache and within what was kept. A head with far fewer effective entries
// than its budget has slots to spare for others; one with more must lose some.
#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim::measures::effective_entries {
namespace {

const DeclareMeasure measure(
    {.name = "effective_entries", .place = 525, .whole = true},
    {{"effective_entries", "layer head", "count", "entries that attention is spread over",
      "exp(-sum of p ln p), p = a query's attention on each prompt entry over that on all of them; "
      "mean over steps"},
     {"effective_entries_kept", "policy budget layer head", "count",
      "entries that attention is spread over within the kept ones",
      "the same with p over the entries that are kept as slots of their own; NaN for policies that "
      "do not choose once (`per-step`, `reads`, `periodic`, `decode`)"}});

struct EffectiveEntries : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    sets_.clear();
    for (const ReplayOutcome& outcome : layer.replay.prefill().outcomes())
      sets_.push_back(outcome.kept->chosen_per_step ? nullptr : outcome.kept);
    const Table<double> none(layer.work.query_heads(), run().info.steps(), kUndefined);
    full_ = none;
    kept_.assign(layer.replay.count(), none);
  }
  void see_rows(const AttentionBlock& rows, int64_t first_step) override {
    parallel_for(rows.heads * rows.rows, [&](int64_t task) {
      const auto x = static_cast<int>(task / rows.rows);
      const int64_t r = task % rows.rows;
      see_row(rows.attention_row(x, r), rows.kv_head, rows.kv_head * rows.heads + x,
              first_step + r);
    });
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    for (int h = 0; h < layer.work.query_heads(); ++h)
      results.set("effective_entries", {layer.index, h}, mean(full_.row(h)));
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      for (int h = 0; h < layer.work.query_heads(); ++h)
        results.set("effective_entries_kept", {cell.record, cell.budget, layer.index, h},
                    mean(kept_[o].row(h)));
    });
  }

 private:
  void see_row(const float* attention, int kv_head, int head, int64_t step) {
    std::vector<double> times_log(run().info.prompt_len);
    Spread all;
    for (size_t i = 0; i < times_log.size(); ++i) {
      times_log[i] = Spread::times_log(attention[i]);
      all.add(attention[i], times_log[i]);
    }
    full_(head, step) = all.entries();
    for (size_t o = 0; o < sets_.size(); ++o) {
      if (sets_[o] == nullptr) continue;
      Spread kept;
      const int owner = sets_[o]->per_query_head ? head : kv_head;
      for (const uint32_t i : sets_[o]->owners[owner]) kept.add(attention[i], times_log[i]);
      kept_[o](head, step) = kept.entries();
    }
  }

  std::vector<std::shared_ptr<const KeptSets>> sets_;  ///< of outcomes that choose once, or null
  Table<double> full_;                                 ///< [Hq][T]
  std::vector<Table<double>> kept_;                    ///< [outcome] each [Hq][T]
};
const RegisterMeasure<EffectiveEntries> registered(measure);

}  // namespace
}  // namespace kvsim::measures::effective_entries
