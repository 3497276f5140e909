#include "analysis/memory_model.hpp"

#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/replay/compression.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

constexpr double kLengthBytes = 4;  // the length of one ragged KV head

double quantized_bytes(const QuantizedCount& head, int64_t numbers, int64_t element_bytes) {
  const int64_t bits = head.bits + (numbers - head.numbers) * 8 * element_bytes;
  return static_cast<double>((bits + 7) / 8);
}

/// Effect of quantisation on each owner's slots; empty when nothing is quantised.
std::vector<QuantizedCount> quantized_heads(const LayerWork& work, const KeptSets& sets,
                                            const Settings& settings) {
  const Quantize& rounding = quantizer(settings);
  std::vector<QuantizedCount> heads;
  if (!rounding.changes_entries()) return heads;
  for (const auto& owner : sets.owners)
    heads.push_back(
        rounding.count(settings, std::ssize(owner), work.trace().k.dim(2), work.value_dim()));
  return heads;
}

/// Bytes of a slot's votes, biases and estimates, four for each number, and of what choosing takes.
double side_bytes(const LayerWork& work, const KeptSets& sets, const Settings& settings,
                  int64_t element_bytes) {
  constexpr double kNumberBytes = 4;
  const int heads = sets.per_query_head ? 1 : work.group_size();
  double per_slot = votes_of(settings).side_bytes(heads);
  switch (chosen<Merge>(settings).estimates()) {
    case EstimateLines::none: break;
    case EstimateLines::mean_query: per_slot += kNumberBytes; break;
    case EstimateLines::every_head: per_slot += kNumberBytes * heads; break;
  }
  if (const auto* const steps = chosen<Indicator>(settings).as<ScoresSteps>())
    per_slot += steps->bytes_per_slot(settings, work.trace().k.dim(2), element_bytes);
  return per_slot;
}

/// Every entry, where nothing leaves.
std::optional<KeptSets> all_entries(const LayerWork& work, const Settings& settings) {
  if (chosen<Schedule>(settings).evicts()) return std::nullopt;
  KeptSets sets;
  sets.owners.assign(work.kv_heads(), ascending<uint32_t>(work.entries()));
  return sets;
}

/// Slots of a KV head. Query heads as owners share the entries that they keep as they are; a slot
/// that holds others, too, differs from head to head.
struct HeldSlots {
  int64_t entries = 0;  ///< the kept entries, or with query heads as owners their union
  int64_t shared = 0;   ///< those that every query head which keeps them keeps as they are
  int64_t own = 0;      ///< merged slots, each of one query head
  int64_t stored() const { return shared + own; }
};

/// Per KV head.
std::vector<HeldSlots> slots_per_kv_head(const KeptSets& kept, int group_size) {
  std::vector<HeldSlots> slots;
  if (!kept.per_query_head) {
    for (const auto& owner : kept.owners) {
      const auto size = std::ssize(owner);
      slots.push_back({.entries = size, .shared = size});
    }
    return slots;
  }
  for (size_t first = 0; first < kept.owners.size(); first += static_cast<size_t>(group_size)) {
    HeldSlots& held = slots.emplace_back();
    std::vector<uint32_t> entries, shared;
    const auto join = [](std::vector<uint32_t>& all, const std::vector<uint32_t>& more) {
      std::vector<uint32_t> joined;
      std::ranges::set_union(all, more, std::back_inserter(joined));
      all = std::move(joined);
    };
    for (size_t h = first; h < first + static_cast<size_t>(group_size); ++h) {
      std::vector<uint32_t> plain = kept.owners[h];
      if (!kept.own.empty()) {
        plain.clear();
        std::ranges::set_difference(kept.owners[h], kept.own[h], std::back_inserter(plain));
        held.own += std::ssize(kept.own[h]);
      }
      join(entries, kept.owners[h]);
      join(shared, plain);
    }
    held.entries = std::ssize(entries);
    held.shared = std::ssize(shared);
  }
  return slots;
}

}  // namespace

void MemoryModel::add_layer(const CacheShape& shape, const KeptSets& kept,
                            const std::vector<QuantizedCount>& quantized, double side_bytes,
                            const Growth& growth) {
  const std::vector<HeldSlots> held = slots_per_kv_head(kept, shape.group_size);
  std::vector<int64_t> slots, stored;
  double read = 0;  // slots times the query heads that read them
  for (const HeldSlots& one : held) {
    slots.push_back(one.entries);
    stored.push_back(one.stored());
    read += static_cast<double>(one.shared * shape.group_size + one.own);
  }
  const int64_t width = shape.head_dim + shape.value_dim;
  const auto slot_bytes = static_cast<double>(width * shape.element_bytes);
  const auto sum = [](const std::vector<int64_t>& counts) {
    return static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  };
  const auto [least, most] = std::minmax_element(slots.begin(), slots.end());
  const auto n = static_cast<double>(shape.prompt_len);
  const double full = shape.kv_heads * n;

  sum_.entries_kv += sum(slots);
  for (const auto& owner : kept.owners)
    sum_.bytes_side += static_cast<double>(owner.size()) * side_bytes;
  sum_.realised_ratio_min = std::min(sum_.realised_ratio_min, static_cast<double>(*least) / n);
  sum_.realised_ratio_max = std::max(sum_.realised_ratio_max, static_cast<double>(*most) / n);
  sum_.bytes_full += full * slot_bytes;
  sum_.bytes_ragged += sum(stored) * slot_bytes + kLengthBytes * shape.kv_heads;
  sum_.bytes_grouped += shape.kv_heads * static_cast<double>(*std::ranges::max_element(stored)) *
                        slot_bytes;
  const double flops_per_read = 2.0 * static_cast<double>(width);
  sum_.flops += read * flops_per_read;
  sum_.flops_full += full * shape.group_size * flops_per_read;
  heads_times_prompt_ += full;

  if (kept.per_query_head) {
    per_query_head_ = true;
    for (const auto& owner : kept.owners) sum_.entries_query += static_cast<double>(owner.size());
  }
  std::vector<double> rounded;  // bytes of each owner's slots
  for (size_t o = 0; o < quantized.size(); ++o) {
    quantized_ = true;
    rounded.push_back(
        quantized_bytes(quantized[o], std::ssize(kept.owners[o]) * width, shape.element_bytes));
    sum_.bytes_quantized += rounded.back();
  }
  add_held(shape, kept, stored, rounded, side_bytes, growth);
}

/// The forms in which the layer may be stored (metrics.md 9). `rounded`: bytes per owner, or empty.
void MemoryModel::add_held(const CacheShape& shape, const KeptSets& kept,
                           const std::vector<int64_t>& stored, const std::vector<double>& rounded,
                           double side_bytes, const Growth& growth) {
  const auto slot_bytes = static_cast<double>((shape.head_dim + shape.value_dim) *
                                              shape.element_bytes);
  const size_t sharing = kept.owners.size() / stored.size();
  double layer = 0, slots = 0, largest = 0;
  std::vector<uint8_t> positions(shape.prompt_len, 0);
  std::vector<uint8_t> pages((shape.prompt_len + kPage - 1) / kPage, 0);
  for (size_t head = 0; head < stored.size(); ++head) {
    const auto own_slots = static_cast<double>(stored[head]);
    double bytes = rounded.empty() ? own_slots * slot_bytes : 0;
    int64_t grown = 0;
    for (size_t o = head * sharing; o < (head + 1) * sharing; ++o) {
      const auto own = std::ssize(kept.owners[o]);
      bytes += (rounded.empty() ? 0 : rounded[o]) + static_cast<double>(own) * side_bytes;
      grown = std::max(grown,
                       growth.most_slots.empty() ? growth.later : growth.most_slots[o] - own);
      for (const uint32_t i : kept.owners[o]) positions[i] = pages[i / kPage] = 1;
    }
    const double own_pages = std::ceil(own_slots / kPage);
    if (own_slots > 0)
      sum_.bytes_paged += own_pages * (kPage * bytes / own_slots + kPageNumberBytes);
    sum_.bytes_peak += static_cast<double>(grown) * slot_bytes;
    layer += bytes;
    slots += own_slots;
    largest = std::max(largest, bytes);
  }
  const double used = static_cast<double>(std::ranges::count(pages, 1));
  const auto heads = static_cast<double>(stored.size());
  sum_.bytes_flattened += layer + kLengthBytes * heads;
  sum_.bytes_peak += layer + kLengthBytes * heads;
  sum_.bytes_padded += heads * largest;
  if (slots > 0) sum_.bytes_in_place += used * (kPage * heads * layer / slots + kPageNumberBytes);
  const auto latent = static_cast<double>(shape.latent_size * shape.element_bytes);
  if (latent == 0) return;
  sum_.bytes_latent += static_cast<double>(std::ranges::count(positions, 1)) * latent +
                       kLengthBytes;
  sum_.bytes_latent_full += static_cast<double>(shape.prompt_len) * latent;
}

MemoryUse MemoryModel::use() const {
  MemoryUse use = sum_;
  use.realised_ratio = use.entries_kv / heads_times_prompt_;
  if (!per_query_head_) use.entries_query = kUndefined;
  if (!quantized_) use.bytes_quantized = kUndefined;
  if (use.bytes_latent_full == 0) use.bytes_latent = kUndefined;
  use.compression = use.bytes_full /
                    ((quantized_ ? use.bytes_quantized : use.bytes_ragged) + use.bytes_side);
  return use;
}

double roofline_time(double bytes, double flops, double bandwidth, double peak) {
  return std::max(bytes / bandwidth, flops / peak);
}

void add_to_memory(const LayerWork& work, const KeptSets& kept, const Settings& settings,
                   int64_t element_bytes, const Growth& growth, MemoryModel& model) {
  CacheShape shape{work.kv_heads(),  work.group_size(), work.trace().k.dim(2),
                   work.value_dim(), work.entries(),    element_bytes};
  if (!merges(settings) && !quantizer(settings).changes_entries())
    shape.latent_size = work.info().latent_size;
  const std::optional<KeptSets> all = all_entries(work, settings);
  const KeptSets& held = all ? *all : kept;
  model.add_layer(shape, held, quantized_heads(work, held, settings),
                  side_bytes(work, held, settings, element_bytes), growth);
}

}  // namespace kvsim

namespace kvsim::measures::memory {
namespace {

const Condition kRoofline{"`--bandwidth` and `--peak`", [](const RunShape& run) {
                            return run.options.bandwidth && run.options.peak;
                          }};

const Condition kLatent{"the trace has `latent_size`",
                        [](const RunShape& run) { return run.info.latent_size > 0; }};

constexpr const char* kCell = "policy budget";
struct Memory : Measure {
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& /*results*/) override {
    const LayerWork& work = layer.work;
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const ReplayOutcome& outcome = layer.replay.outcome(o);
      const Settings& settings = run().options.records[cell.record].settings;
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
      results.set("bytes_latent", at, use.bytes_latent);
      results.set("compression_latent", at, use.bytes_latent_full / use.bytes_latent);
      results.set("compression", at, use.compression);
      // The roofline reads all that is held.
      const Record& record = run().options.records[cell.record];
      if (results.has("decode_time") && chosen<Schedule>(record.settings).evicts())
        write_roofline(use, at, results);
    }
  }

 private:
  int64_t given_entries(ReplayCell cell) const {
    const Record& record = run().options.records[cell.record];
    return budget_entries(record.settings, record.budgets(run().options.budgets)[cell.budget],
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
const RegisterMeasure<Memory> register_memory(
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
      "codes, scales, and the rest at --element-bytes; NaN for policies that do not quantise",
      Needs{&kQuantizes}},
     {"bytes_side", kCell, "bytes", "memory of votes, biases, estimates and bounds of pages",
      "4 per vote, 4 g per bias, 4 per estimate; what schedule=reads chooses by, as with "
      "indicator=page-bound 2 d * --element-bytes / block per slot; else 0"},
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
     {"bytes_latent", kCell, "bytes", "bytes of a latent cache",
      "sum over layers of the positions that some head keeps * latent_size * --element-bytes, + 4 "
      "per layer; NaN for policies that merge or quantise",
      Needs{&kLatent}},
     {"compression_latent", kCell, "1", "compression of a latent cache",
      "bytes of the full latent cache / bytes_latent", Needs{&kLatent}},
     {"compression", kCell, "1", "compression",
      "bytes of the full cache / bytes of the compressed one"},
     {"decode_time", kCell, "s", "attention time of one decode step by the roofline",
      "max(bytes read / --bandwidth, flops / --peak); NaN with `schedule=reads`",
      Needs{&kRoofline}},
     {"decode_speedup", kCell, "1", "speed-up of one decode step by the roofline",
      "decode time of the full cache / of the compressed one; an upper bound", Needs{&kRoofline}}});

}  // namespace
}  // namespace kvsim::measures::memory
