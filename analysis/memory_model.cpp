#include "analysis/memory_model.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "analysis/undefined.hpp"

namespace kvsim {
namespace {

constexpr double kLengthBytes = 4;    // the length of one ragged KV head
constexpr int64_t kGroupBits = 32;    // step and lowest value of one group, 16 bits each
constexpr int64_t kOutlierBits = 32;  // a value and its place, 16 bits each
constexpr int64_t kLevelBits = 16;

double quantized_bytes(const QuantizedHead& head, int64_t numbers, int64_t element_bytes) {
  const int64_t bits = (head.numbers - head.outliers) * head.bits + head.groups * kGroupBits +
                       head.outliers * kOutlierBits + head.levels * kLevelBits +
                       (numbers - head.numbers) * 8 * element_bytes;
  return static_cast<double>((bits + 7) / 8);
}

}  // namespace

std::vector<HeldSlots> slots_per_kv_head(const KeptSets& kept, int group_size) {
  std::vector<HeldSlots> slots;
  if (!kept.per_query_head) {
    for (const auto& owner : kept.owners) {
      const auto size = static_cast<int64_t>(owner.size());
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
        held.own += static_cast<int64_t>(kept.own[h].size());
      }
      join(entries, kept.owners[h]);
      join(shared, plain);
    }
    held.entries = static_cast<int64_t>(entries.size());
    held.shared = static_cast<int64_t>(shared.size());
  }
  return slots;
}

void MemoryModel::add_layer(const CacheShape& shape, const KeptSets& kept,
                            const std::vector<QuantizedHead>& quantized, double side_bytes,
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
    rounded.push_back(quantized_bytes(
        quantized[o], static_cast<int64_t>(kept.owners[o].size()) * width, shape.element_bytes));
    sum_.bytes_quantized += rounded.back();
  }
  add_held(shape, kept, held, rounded, side_bytes, growth);
}

/// The forms in which the layer may be stored (metrics.md 9). `rounded`: bytes per owner, or empty.
void MemoryModel::add_held(const CacheShape& shape, const KeptSets& kept,
                           const std::vector<HeldSlots>& held, const std::vector<double>& rounded,
                           double side_bytes, const Growth& growth) {
  const auto slot_bytes = static_cast<double>((shape.head_dim + shape.value_dim) *
                                              shape.element_bytes);
  const size_t sharing = kept.owners.size() / held.size();
  double layer = 0, slots = 0, largest = 0;
  std::vector<uint8_t> pages(static_cast<size_t>((shape.prompt_len + kPage - 1) / kPage), 0);
  for (size_t head = 0; head < held.size(); ++head) {
    const auto stored = static_cast<double>(held[head].stored());
    double bytes = rounded.empty() ? stored * slot_bytes : 0;
    int64_t grown = 0;
    for (size_t o = head * sharing; o < (head + 1) * sharing; ++o) {
      const auto own = std::ssize(kept.owners[o]);
      bytes += (rounded.empty() ? 0 : rounded[o]) + static_cast<double>(own) * side_bytes;
      grown = std::max(grown,
                       growth.most_slots.empty() ? growth.later : growth.most_slots[o] - own);
      for (const uint32_t i : kept.owners[o]) pages[i / kPage] = 1;
    }
    const double own_pages = std::ceil(stored / kPage);
    if (stored > 0) sum_.bytes_paged += own_pages * (kPage * bytes / stored + kPageNumberBytes);
    sum_.bytes_peak += static_cast<double>(grown) * slot_bytes;
    layer += bytes;
    slots += stored;
    largest = std::max(largest, bytes);
  }
  const double used = static_cast<double>(std::ranges::count(pages, 1));
  const auto heads = static_cast<double>(held.size());
  sum_.bytes_flattened += layer + kLengthBytes * heads;
  sum_.bytes_peak += layer + kLengthBytes * heads;
  sum_.bytes_padded += heads * largest;
  if (slots > 0) sum_.bytes_in_place += used * (kPage * heads * layer / slots + kPageNumberBytes);
}

MemoryUse MemoryModel::use() const {
  MemoryUse use = sum_;
  use.realised_ratio = use.entries_kv / heads_times_prompt_;
  if (!per_query_head_) use.entries_query = kUndefined;
  if (!quantized_) use.bytes_quantized = kUndefined;
  use.compression = use.bytes_full /
                    ((quantized_ ? use.bytes_quantized : use.bytes_ragged) + use.bytes_side);
  return use;
}

double roofline_time(double bytes, double flops, double bandwidth, double peak) {
  return std::max(bytes / bandwidth, flops / peak);
}

}  // namespace kvsim
