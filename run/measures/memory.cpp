// Memory of the compressed cache over all layers, and the roofline of a decode step (metrics.md 9).
#include <map>

#include "analysis/memory_model.hpp"
#include "run/measures/conditions.hpp"
#include "run/measures/held_bytes.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/stages/schedule/schedule.hpp"

namespace kvsim::measures::memory {
namespace {

const Condition kRoofline{"`--bandwidth` and `--peak`", [](const RunShape& run) {
                            return run.options.bandwidth && run.options.peak;
                          }};

constexpr const char* kCell = "policy budget";
const DeclareMeasure measure(
    {.name = "memory", .place = 400, .when = &kAlways},
    {{"budget_entries", kCell, "count", "entries that the policy was given",
      "B, per owner: of the typed budget, or what --equal-bytes chose"},
     {"entries_kv", kCell, "count", "slots of the compressed cache",
      "sum over layers and KV heads; with granularity=query the union over the group"},
     {"entries_query", kCell, "count", "slots counted per query head",
      "sum over layers and query heads; only for policies with granularity=query",
      Needs{&kQueryHeads}},
     {"realised_ratio", kCell, "1", "share of the prompt that is kept",
      "entries_kv / (layers * Hkv * n)"},
     {"realised_ratio_min", kCell, "1", "smallest kept share of a head",
      "minimum over layers and KV heads"},
     {"realised_ratio_max", kCell, "1", "largest kept share of a head",
      "maximum over layers and KV heads"},
     {"bytes_ragged", kCell, "bytes", "memory with a length per head",
      "slots * (d + dv) * --element-bytes + 4 per KV head; merged slots of query heads count for "
      "each head"},
     {"bytes_grouped", kCell, "bytes", "memory with one tensor per layer",
      "sum over layers of Hkv * largest head's slots * (d + dv) * --element-bytes"},
     {"bytes_quantized", kCell, "bytes", "memory when quantised",
      "codes, 32 bits per group, and the rest at --element-bytes; NaN for policies that do not "
      "quantise",
      Needs{&kQuantizes}},
     {"bytes_side", kCell, "bytes", "memory of votes, biases, estimates and bounds of pages",
      "4 per vote, 4 g per bias, 4 per estimate; with indicator=page-bound 2 d * --element-bytes / "
      "block per slot; else 0"},
     {"bytes_flattened", kCell, "bytes", "bytes held, heads one behind the other",
      "bytes_quantized where it is defined, else bytes of the slots, + bytes_side + 4 per KV head"},
     {"bytes_padded", kCell, "bytes", "bytes held, every head of a layer as large as its largest",
      "sum over layers of Hkv * largest head's bytes, with scales and side numbers"},
     {"bytes_paged", kCell, "bytes", "bytes held in pages of 16 slots of one head",
      "sum over layers and KV heads of ceil(slots/16) * (16 * the head's mean bytes per slot + 4)"},
     {"bytes_in_place", kCell, "bytes",
      "bytes held where no entry moves, in pages of 16 positions of all heads",
      "sum over layers of the pages in which some head keeps an entry * (16 * Hkv * the layer's "
      "mean bytes per slot + 4)"},
     {"bytes_peak", kCell, "bytes", "the most bytes held while later tokens come",
      "bytes_flattened + (most slots at any later step - slots) * (d + dv) * --element-bytes"},
     {"compression", kCell, "1", "compression",
      "bytes of the full cache / bytes of the compressed one"},
     {"decode_time", kCell, "s", "attention time of one decode step by the roofline",
      "max(bytes read / --bandwidth, flops / --peak); NaN with `schedule=reads`",
      Needs{&kRoofline}},
     {"decode_speedup", kCell, "1", "speed-up of one decode step by the roofline",
      "decode time of the full cache / of the compressed one; an upper bound", Needs{&kRoofline}}});

class Memory : public Measure {
 public:
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& /*results*/) override {
    const LayerWork& work = layer.work;
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const ReplayOutcome& outcome = layer.replay.outcome(o);
      const Settings& settings = run().options.records[static_cast<size_t>(cell.record)].settings;
      const KeptSets& first = outcome.first_kept ? *outcome.first_kept : *outcome.kept;
      const int64_t later = work.info().total_len - work.info().prompt_len;
      add_to_memory(work, first, settings, run().options.element_bytes,
                    {.later = later, .most_slots = outcome.most_slots}, sums_[cell]);
    });
  }
  void finish_run(MeasureResults& results) override {
    for (const auto& [cell, model] : sums_) {
      const std::initializer_list<int64_t> at = {cell.record, cell.budget};
      const MemoryUse use = model.use();
      results.set("budget_entries", at, static_cast<double>(given_entries(cell)));
      results.set("entries_kv", at, use.entries_kv);
      results.set("entries_query", at, use.entries_query);
      results.set("realised_ratio", at, use.realised_ratio);
      results.set("realised_ratio_min", at, use.realised_ratio_min);
      results.set("realised_ratio_max", at, use.realised_ratio_max);
      results.set("bytes_ragged", at, use.bytes_ragged);
      results.set("bytes_grouped", at, use.bytes_grouped);
      results.set("bytes_quantized", at, use.bytes_quantized);
      results.set("bytes_side", at, use.bytes_side);
      results.set("bytes_flattened", at, use.bytes_flattened);
      results.set("bytes_padded", at, use.bytes_padded);
      results.set("bytes_paged", at, use.bytes_paged);
      results.set("bytes_in_place", at, use.bytes_in_place);
      results.set("bytes_peak", at, use.bytes_peak);
      results.set("compression", at, use.compression);
      // The roofline reads all that is held.
      const Record& record = run().options.records[static_cast<size_t>(cell.record)];
      if (results.has("decode_time") && chosen<Schedule>(record.settings).evicts())
        write_roofline(use, at, results);
    }
  }

 private:
  int64_t given_entries(ReplayCell cell) const {
    const Record& record = run().options.records[static_cast<size_t>(cell.record)];
    const auto& asked = record.own_budgets.empty() ? run().options.budgets : record.own_budgets;
    return budget_entries(record.settings, asked[static_cast<size_t>(cell.budget)],
                          run().info.prompt_len);
  }
  void write_roofline(const MemoryUse& use, std::initializer_list<int64_t> at,
                      MeasureResults& results) const {
    const double bandwidth = *run().options.bandwidth, peak = *run().options.peak;
    const double time = roofline_time(use.bytes_full / use.compression, use.flops, bandwidth, peak);
    const double full = roofline_time(use.bytes_full, use.flops_full, bandwidth, peak);
    results.set("decode_time", at, time);
    results.set("decode_speedup", at, full / time);
  }

  std::map<ReplayCell, MemoryModel> sums_;
};
const RegisterMeasure<Memory> registered(measure);

}  // namespace
}  // namespace kvsim::measures::memory
