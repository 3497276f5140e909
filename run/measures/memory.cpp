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
DeclareMeasure measure({.name = "memory", .place = 400, .when = &kAlways});
const MeasureVariable given = measure.variable(
    {.name = "budget_entries",
     .dims = kCell,
     .units = "count",
     .long_name = "entries that the policy was given",
     .definition = "B, per owner: of the typed budget, or what --equal-bytes chose"});
const MeasureVariable entries_kv = measure.variable(
    {.name = "entries_kv",
     .dims = kCell,
     .units = "count",
     .long_name = "slots of the compressed cache",
     .definition =
         "sum over layers and KV heads; with granularity=query the union over the group"});
const MeasureVariable entries_query = measure.variable(
    {.name = "entries_query",
     .dims = kCell,
     .units = "count",
     .long_name = "slots counted per query head",
     .definition = "sum over layers and query heads; only for policies with granularity=query",
     .needs = {&kQueryHeads}});
const MeasureVariable realised_ratio = measure.variable(
    {.name = "realised_ratio",
     .dims = kCell,
     .long_name = "share of the prompt that is kept",
     .definition = "entries_kv / (layers * Hkv * n)"});
const MeasureVariable realised_ratio_min = measure.variable(
    {.name = "realised_ratio_min",
     .dims = kCell,
     .long_name = "smallest kept share of a head",
     .definition = "minimum over layers and KV heads"});
const MeasureVariable realised_ratio_max = measure.variable(
    {.name = "realised_ratio_max",
     .dims = kCell,
     .long_name = "largest kept share of a head",
     .definition = "maximum over layers and KV heads"});
const MeasureVariable bytes_ragged = measure.variable(
    {.name = "bytes_ragged",
     .dims = kCell,
     .units = "bytes",
     .long_name = "memory with a length per head",
     .definition =
         "slots * (d + dv) * --element-bytes + 4 per KV head; merged slots of query heads "
         "count for each head"});
const MeasureVariable bytes_grouped = measure.variable(
    {.name = "bytes_grouped",
     .dims = kCell,
     .units = "bytes",
     .long_name = "memory with one tensor per layer",
     .definition = "sum over layers of Hkv * largest head's slots * (d + dv) * --element-bytes"});
const MeasureVariable bytes_quantized = measure.variable(
    {.name = "bytes_quantized",
     .dims = kCell,
     .units = "bytes",
     .long_name = "memory when quantised",
     .definition = "codes, 32 bits per group, and the rest at --element-bytes; NaN for policies "
                   "that do not quantise",
     .needs = {&kQuantizes}});
const MeasureVariable bytes_side = measure.variable(
    {.name = "bytes_side",
     .dims = kCell,
     .units = "bytes",
     .long_name = "memory of votes, biases, estimates and bounds of pages",
     .definition = "4 per vote, 4 g per bias, 4 per estimate; with indicator=page-bound 2 d * "
                   "--element-bytes / block per slot; else 0"});
const MeasureVariable bytes_flattened = measure.variable(
    {.name = "bytes_flattened",
     .dims = kCell,
     .units = "bytes",
     .long_name = "bytes held, heads one behind the other",
     .definition = "bytes_quantized where it is defined, else bytes of the slots, + bytes_side + 4 "
                   "per KV head"});
const MeasureVariable bytes_padded = measure.variable(
    {.name = "bytes_padded",
     .dims = kCell,
     .units = "bytes",
     .long_name = "bytes held, every head of a layer as large as its largest",
     .definition = "sum over layers of Hkv * largest head's bytes, with scales and side numbers"});
const MeasureVariable bytes_paged = measure.variable(
    {.name = "bytes_paged",
     .dims = kCell,
     .units = "bytes",
     .long_name = "bytes held in pages of 16 slots of one head",
     .definition = "sum over layers and KV heads of ceil(slots/16) * (16 * the head's mean bytes "
                   "per slot + 4)"});
const MeasureVariable bytes_in_place = measure.variable(
    {.name = "bytes_in_place",
     .dims = kCell,
     .units = "bytes",
     .long_name = "bytes held where no entry moves, in pages of 16 positions of all heads",
     .definition = "sum over layers of the pages in which some head keeps an entry * (16 * Hkv * "
                   "the layer's mean bytes per slot + 4)"});
const MeasureVariable bytes_peak = measure.variable(
    {.name = "bytes_peak",
     .dims = kCell,
     .units = "bytes",
     .long_name = "the most bytes held while later tokens come",
     .definition = "bytes_flattened + (most slots at any later step - slots) * (d + dv) * "
                   "--element-bytes"});
const MeasureVariable compression = measure.variable(
    {.name = "compression",
     .dims = kCell,
     .long_name = "compression",
     .definition = "bytes of the full cache / bytes of the compressed one"});
const MeasureVariable decode_time = measure.variable(
    {.name = "decode_time",
     .dims = kCell,
     .units = "s",
     .long_name = "attention time of one decode step by the roofline",
     .definition = "max(bytes read / --bandwidth, flops / --peak); NaN with `schedule=reads`",
     .needs = {&kRoofline}});
const MeasureVariable decode_speedup = measure.variable(
    {.name = "decode_speedup",
     .dims = kCell,
     .long_name = "speed-up of one decode step by the roofline",
     .definition = "decode time of the full cache / of the compressed one; an upper bound",
     .needs = {&kRoofline}});

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
      results.set(given, at, static_cast<double>(given_entries(cell)));
      results.set(entries_kv, at, use.entries_kv);
      results.set(entries_query, at, use.entries_query);
      results.set(realised_ratio, at, use.realised_ratio);
      results.set(realised_ratio_min, at, use.realised_ratio_min);
      results.set(realised_ratio_max, at, use.realised_ratio_max);
      results.set(bytes_ragged, at, use.bytes_ragged);
      results.set(bytes_grouped, at, use.bytes_grouped);
      results.set(bytes_quantized, at, use.bytes_quantized);
      results.set(bytes_side, at, use.bytes_side);
      results.set(bytes_flattened, at, use.bytes_flattened);
      results.set(bytes_padded, at, use.bytes_padded);
      results.set(bytes_paged, at, use.bytes_paged);
      results.set(bytes_in_place, at, use.bytes_in_place);
      results.set(bytes_peak, at, use.bytes_peak);
      results.set(compression, at, use.compression);
      // The roofline reads all that is held.
      const Record& record = run().options.records[static_cast<size_t>(cell.record)];
      if (results.has(decode_time) && chosen<Schedule>(record.settings).evicts())
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
    results.set(decode_time, at, time);
    results.set(decode_speedup, at, full / time);
  }

  std::map<ReplayCell, MemoryModel> sums_;
};
const RegisterMeasure<Memory> registered(measure);

}  // namespace
}  // namespace kvsim::measures::memory
