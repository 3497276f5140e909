#include "sim/replay/slots.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvsim {
namespace {

/// Later entries n..N-1 of one KV head.
Table<float> later_rows(const Tensor& tensor, int kv_head, int64_t n) {
  Table<float> rows(tensor.dim(1) - n, tensor.dim(2));
  tensor.read(kv_head, n, tensor.dim(1), rows.data());
  return rows;
}

}  // namespace

void rotate_key(const TraceInfo& info, int64_t positions, std::span<float> key) {
  const size_t half = info.rope_inv_freq.size();
  for (size_t j = 0; j < half; ++j) {
    const double angle = static_cast<double>(positions) * info.rope_inv_freq[j];
    const double c = std::cos(angle);
    const double s = std::sin(angle);
    float& a = key[info.rope_interleaved ? 2 * j : j];
    float& b = key[info.rope_interleaved ? 2 * j + 1 : j + half];
    const double x = a;
    const double y = b;
    a = static_cast<float>(x * c - y * s);
    b = static_cast<float>(x * s + y * c);
  }
}

LayerSlots slots_of(const LayerWork& work, const KeptSets& kept) {
  LayerSlots slots;
  slots.per_query_head = kept.per_query_head;
  const int heads_per_kv = kept.per_query_head ? work.group_size() : 1;
  Table<float> keys;
  Table<float> values;
  for (size_t o = 0; o < kept.owners.size(); ++o) {
    if (static_cast<int>(o) % heads_per_kv == 0) {
      keys = work.keys(static_cast<int>(o) / heads_per_kv);
      values = work.values(static_cast<int>(o) / heads_per_kv);
    }
    const auto& entries = kept.owners[o];
    OwnerSlots owner;
    owner.k = Table<float>(static_cast<int64_t>(entries.size()), keys.columns());
    owner.v = Table<float>(static_cast<int64_t>(entries.size()), values.columns());
    for (size_t r = 0; r < entries.size(); ++r) {
      std::ranges::copy(keys.row(entries[r]), owner.k.row(static_cast<int64_t>(r)).begin());
      std::ranges::copy(values.row(entries[r]), owner.v.row(static_cast<int64_t>(r)).begin());
    }
    slots.owners.push_back(std::move(owner));
  }
  return slots;
}

void rotate_to_cache_positions(const TraceInfo& info, const KeptSets& kept, LayerSlots& slots) {
  for (size_t o = 0; o < kept.owners.size(); ++o) {
    const auto& entries = kept.owners[o];
    const int64_t shift = info.prompt_len - static_cast<int64_t>(entries.size());
    for (size_t r = 0; r < entries.size(); ++r) {
      const int64_t moved = static_cast<int64_t>(r) + shift - static_cast<int64_t>(entries[r]);
      if (moved != 0) rotate_key(info, moved, slots.owners[o].k.row(static_cast<int64_t>(r)));
    }
  }
}

void attend_slots(LayerWork& work, const LayerSlots& slots, int64_t first, int64_t steps,
                  float* out, SlotSoftmax* softmax) {
  const TraceInfo& info = work.info();
  const LayerTrace& layer = work.trace();
  const int64_t row0 = info.first_step() + first, n = work.entries();
  const int heads = slots.per_query_head ? 1 : work.group_size();
  std::vector<Table<float>> later_k, later_v, queries;
  for (int kv = 0; kv < work.kv_heads(); ++kv) {
    later_k.push_back(later_rows(layer.k, kv, n));
    later_v.push_back(later_rows(layer.v, kv, n));
  }
  if (softmax != nullptr) {
    softmax->logits.clear();
    softmax->log_sum_exp = Table<double>(work.query_heads(), steps);
  }
  std::vector<SlotRows> owners(slots.owners.size());
  std::vector<int64_t> seen(slots.owners.size() * static_cast<size_t>(steps));
  for (size_t o = 0; o < owners.size(); ++o) {
    const OwnerSlots& own = slots.owners[o];
    SlotRows& rows = owners[o];
    rows.first_head = static_cast<int>(o) * heads;
    rows.heads = heads;
    rows.rows = steps;
    Table<float>& q = queries.emplace_back(heads * steps, layer.q.dim(2));
    for (int x = 0; x < heads; ++x)
      layer.q.read(rows.first_head + x, row0, row0 + steps, q.row(x * steps).data());
    rows.queries = q.data();
    const auto kv = static_cast<size_t>(rows.first_head / work.group_size());
    rows.segments = {{own.k.data(), own.v.data(), own.k.rows(),
                      own.log_weight.empty() ? nullptr : own.log_weight.data()},
                     {later_k[kv].data(), later_v[kv].data(), later_k[kv].rows()}};
    int64_t* const ends = seen.data() + o * static_cast<size_t>(steps);
    for (int64_t s = 0; s < steps; ++s)
      ends[s] = own.k.rows() + info.query_position[static_cast<size_t>(row0 + s)] - n + 1;
    rows.seen = ends;
    rows.outputs = out + rows.first_head * steps * work.value_dim();
    if (softmax == nullptr) continue;
    rows.logits = softmax->logits.emplace_back(heads * steps, rows.slots()).data();
    rows.log_sum_exp = softmax->log_sum_exp.row(rows.first_head).data();
  }
  work.backend().attend(layer, owners);
}

}  // namespace kvsim
