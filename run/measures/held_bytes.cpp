#include "run/measures/held_bytes.hpp"

#include <numeric>
#include <optional>

#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/merge/votes.hpp"
#include "sim/stages/quantize/quantize.hpp"
#include "sim/stages/schedule/schedule.hpp"

namespace kvsim {
namespace {

/// What quantisation does to each owner's slots; empty when nothing is quantised.
std::vector<QuantizedHead> quantized_heads(const LayerWork& work, const KeptSets& sets,
                                           const Settings& settings) {
  const Quantize& rounding = quantizer(settings);
  std::vector<QuantizedHead> heads;
  if (!rounding.changes_entries()) return heads;
  for (const auto& owner : sets.owners) {
    const QuantizedCount count = rounding.count(settings, static_cast<int64_t>(owner.size()),
                                                work.trace().k.dim(2), work.value_dim());
    heads.push_back({.numbers = count.numbers,
                     .groups = count.groups,
                     .bits = static_cast<int>(settings.count(keys::quant_bits)),
                     .outliers = count.outliers,
                     .levels = count.levels});
  }
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
  return per_slot +
         chosen<Indicator>(settings).bytes_per_slot(settings, work.trace().k.dim(2), element_bytes);
}

/// Every entry, where nothing leaves.
std::optional<KeptSets> all_entries(const LayerWork& work, const Settings& settings) {
  if (chosen<Schedule>(settings).evicts()) return std::nullopt;
  std::vector<uint32_t> all(static_cast<size_t>(work.entries()));
  std::iota(all.begin(), all.end(), 0u);
  KeptSets sets;
  sets.owners.assign(static_cast<size_t>(work.kv_heads()), all);
  return sets;
}

}  // namespace

void add_to_memory(const LayerWork& work, const KeptSets& kept, const Settings& settings,
                   int64_t element_bytes, const Growth& growth, MemoryModel& model) {
  const CacheShape shape{work.kv_heads(),  work.group_size(), work.trace().k.dim(2),
                         work.value_dim(), work.entries(),    element_bytes};
  const std::optional<KeptSets> all = all_entries(work, settings);
  const KeptSets& held = all ? *all : kept;
  model.add_layer(shape, held, quantized_heads(work, held, settings),
                  side_bytes(work, held, settings, element_bytes), growth);
}

}  // namespace kvsim
