#include "sim/replay/slots.hpp"

#include <algorithm>
#include <utility>

#include "sim/replay/compression.hpp"
#include "sim/stages/common_keys.hpp"
#include "sim/stages/merge/votes.hpp"
#include "sim/stages/quantize/quantize.hpp"
#include "sim/stages/schedule/schedule.hpp"

namespace kvsim {
namespace {

/// Later entries n..N-1 of one KV head.
Table<float> later_rows(const Tensor& tensor, int kv_head, int64_t n) {
  Table<float> rows(tensor.dim(1) - n, tensor.dim(2));
  tensor.read(kv_head, n, tensor.dim(1), rows.data());
  return rows;
}

}  // namespace

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

LayerSlots as_slots(const std::vector<SlotCache>& owners, bool per_query_head,
                    const Settings& settings) {
  const Votes& votes = votes_of(settings);
  LayerSlots slots;
  slots.per_query_head = per_query_head;
  for (const SlotCache& cache : owners) {
    OwnerSlots owner;
    owner.k = Table<float>(cache.size(), cache.key_dim());
    owner.v = Table<float>(cache.size(), cache.value_dim());
    for (int64_t s = 0; s < cache.size(); ++s) {
      std::ranges::copy(cache.key(s), owner.k.row(s).begin());
      std::ranges::copy(cache.value(s), owner.v.row(s).begin());
    }
    if (votes.weighs()) {
      owner.log_weight = Table<float>(cache.heads(), cache.size());
      for (int x = 0; x < cache.heads(); ++x)
        for (int64_t s = 0; s < cache.size(); ++s)
          owner.log_weight(x, s) = static_cast<float>(votes.log_weight(cache, s, x));
    }
    slots.owners.push_back(std::move(owner));
  }
  return slots;
}

void rotate_to_cache_positions(const LayerWork& work, const KeptSets& kept, LayerSlots& slots) {
  RotationMemory rotation;
  for (size_t o = 0; o < kept.owners.size(); ++o) {
    const auto& entries = kept.owners[o];
    const int64_t shift = work.entries() - static_cast<int64_t>(entries.size());
    for (size_t r = 0; r < entries.size(); ++r) {
      const int64_t moved = static_cast<int64_t>(r) + shift - static_cast<int64_t>(entries[r]);
      if (moved == 0) continue;
      rotation.rotate(work.rotation(), moved, slots.owners[o].k.row(static_cast<int64_t>(r)));
    }
  }
}

SlotAttention::SlotAttention(LayerWork& work) : work_(work) {
  const LayerTrace& layer = work.trace();
  for (int kv = 0; kv < work.kv_heads(); ++kv) {
    later_k_.push_back(later_rows(layer.k, kv, work.entries()));
    later_v_.push_back(later_rows(layer.v, kv, work.entries()));
  }
}

void SlotAttention::read_queries(int64_t first, int64_t steps) {
  const Range wanted{first, first + steps};
  if (wanted == steps_) return;
  steps_ = wanted;
  const Tensor& q = work_.trace().q;
  const int64_t row0 = work_.info().first_step() + first;
  queries_ = Table<float>(work_.query_heads() * steps, q.dim(2));
  for (int h = 0; h < work_.query_heads(); ++h)
    q.read(h, row0, row0 + steps, queries_.data() + h * steps * q.dim(2));
}

void SlotAttention::run(const LayerSlots& slots, int64_t first, int64_t steps, float* out,
                        SlotSoftmax* softmax) {
  const TraceInfo& info = work_.info();
  const int64_t row0 = info.first_step() + first, n = work_.entries();
  const int heads = slots.per_query_head ? 1 : work_.group_size();
  read_queries(first, steps);
  if (softmax != nullptr) {
    softmax->owners.resize(slots.owners.size());
    softmax->log_sum_exp = Table<double>(work_.query_heads(), steps);
  }
  std::vector<SlotRows> owners(slots.owners.size());
  std::vector<int64_t> seen(slots.owners.size() * static_cast<size_t>(steps));
  for (size_t o = 0; o < owners.size(); ++o) {
    const OwnerSlots& own = slots.owners[o];
    SlotRows& rows = owners[o];
    const int first_head = static_cast<int>(o) * heads;
    rows.heads = heads;
    rows.rows = steps;
    rows.queries = queries_.data() + first_head * steps * queries_.columns();
    rows.sinks = sinks_from(work_.trace(), first_head);
    const auto kv = static_cast<size_t>(first_head / work_.group_size());
    rows.segments = {{own.k.data(), own.v.data(), own.k.rows(),
                      own.log_weight.empty() ? nullptr : own.log_weight.data()},
                     {later_k_[kv].data(), later_v_[kv].data(), later_k_[kv].rows()}};
    int64_t* const ends = seen.data() + o * static_cast<size_t>(steps);
    for (int64_t s = 0; s < steps; ++s)
      ends[s] = own.k.rows() + info.query_position[static_cast<size_t>(row0 + s)] - n + 1;
    rows.seen = ends;
    rows.outputs = out + first_head * steps * work_.value_dim();
    if (softmax == nullptr) continue;
    SlotSoftmax::Logits& logits = softmax->owners[o];
    logits.columns = rows.slots();
    rows.logits = logits.values.reserve(heads * steps * logits.columns);
    rows.log_sum_exp = softmax->log_sum_exp.row(first_head).data();
  }
  work_.backend().attend(work_.trace(), owners);
}

namespace {

bool rounds_entries(const LayerWork& work, const KeptSets& kept, const Settings& settings) {
  const Quantize& rounding = quantizer(settings);
  return std::any_of(kept.owners.begin(), kept.owners.end(), [&](const auto& owner) {
    return rounding
               .count(settings, static_cast<int64_t>(owner.size()), work.trace().k.dim(2),
                      work.value_dim())
               .numbers > 0;
  });
}

}  // namespace

bool leaves_out_entries(const LayerWork& work, const KeptSets& kept) {
  return std::any_of(kept.owners.begin(), kept.owners.end(), [&](const auto& owner) {
    return static_cast<int64_t>(owner.size()) < work.entries();
  });
}

bool changes_entries(const LayerWork& work, const KeptSets& kept, const Settings& settings) {
  if (moves_positions(settings)) return true;
  if (leaves_out_entries(work, kept) && merges(settings)) return true;
  return rounds_entries(work, kept, settings);
}

bool leaves_cache_alone(const LayerWork& work, const KeptSets& kept, const Settings& settings) {
  const auto& schedule = chosen<Schedule>(settings);
  const bool goes_on = schedule.decodes() || schedule.repeats();
  if (goes_on && !kept.places.empty()) return false;
  return !leaves_out_entries(work, kept) && !rounds_entries(work, kept, settings);
}

}  // namespace kvsim
