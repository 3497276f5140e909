#include "sim/replay/slots.hpp"

#include "sim/replay/compression.hpp"

namespace kvsim {
namespace {

bool rounds_entries(const LayerWork& work, const KeptSets& kept, const Settings& settings) {
  const Quantize& rounding = quantizer(settings);
  return std::any_of(kept.owners.begin(), kept.owners.end(), [&](const auto& owner) {
    return rounding.count(settings, std::ssize(owner), work.trace().k.dim(2), work.value_dim())
               .numbers > 0;
  });
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
    owner.k = Table<float>(std::ssize(entries), keys.columns());
    owner.v = Table<float>(std::ssize(entries), values.columns());
    for (int64_t r = 0; r < std::ssize(entries); ++r) {
      std::ranges::copy(keys.row(entries[r]), owner.k.row(r).begin());
      std::ranges::copy(values.row(entries[r]), owner.v.row(r).begin());
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
    const int64_t shift = work.entries() - std::ssize(entries);
    for (int64_t r = 0; r < std::ssize(entries); ++r) {
      const int64_t moved = r + shift - static_cast<int64_t>(entries[r]);
      if (moved == 0) continue;
      rotation.rotate(work.rotation(), moved, slots.owners[o].k.row(r));
    }
  }
}

/// Does some owner keep less than the prompt?
bool leaves_out_entries(const LayerWork& work, const KeptSets& kept) {
  return std::any_of(kept.owners.begin(), kept.owners.end(),
                     [&](const auto& owner) { return std::ssize(owner) < work.entries(); });
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

/// One look at each member's attention. Where that is next to nothing, float32 has lost it, and the
/// logits are summed instead.
SlotMembers sum_members(std::span<const uint32_t> members, uint32_t own, const FullRow& full,
                        std::span<const float> importance) {
  constexpr double kLostInFloat = 1e-30;
  SlotMembers all;
  for (const uint32_t entry : members) {
    const auto a = static_cast<double>(full.attention[entry]);
    all.attention += a;
    if (entry == own) continue;
    all.merged_attention += a;
    all.merged_importance += a * importance[entry];
  }
  if (all.attention > kLostInFloat) {
    all.log_mass = std::log(all.attention) + full.log_sum_exp;
    return all;
  }
  all.log_mass = -std::numeric_limits<double>::infinity();
  for (const uint32_t entry : members) all.log_mass = log_add(all.log_mass, full.logits[entry]);
  return all;
}

MergeWatcher::MergeWatcher(LayerWork& work, const std::vector<SlotCache>& owners,
                           const LayerSlots& slots, const Table<float>& importance,
                           const std::vector<float>& z, FullAttention& full, MergeTally& tally)
    : work_(work), slots_(slots), importance_(importance), z_(z), full_(full), tally_(tally),
      heads_per_owner_(work.query_heads() / static_cast<int>(owners.size())) {
  for (const SlotCache& cache : owners) {
    Owner& owner = owners_.emplace_back();
    for (int64_t s = 0; s < cache.size(); ++s) {
      if (cache.members(s).empty()) continue;
      owner.slot.push_back(s);
      owner.own.push_back(static_cast<uint32_t>(cache.position(s)));
      owner.member.insert(owner.member.end(), cache.members(s).begin(), cache.members(s).end());
      owner.end.push_back(owner.member.size());
    }
  }
  for (int kv = 0; tally.wants_changes() && kv < work.kv_heads(); ++kv)
    values_.push_back(work.values(kv));
}

void MergeWatcher::see(int64_t first, int64_t steps, const SlotSoftmax& softmax) {
  const std::vector<AttentionBlock>& all = full_.rows(first, steps);
  parallel_for(work_.query_heads(), [&](int64_t h) {
    const auto head = static_cast<int>(h);
    const AttentionBlock& full = all[head / work_.group_size()];
    const int x = head % work_.group_size();
    const SlotSoftmax::Logits& own = softmax.owners[owner_of(head)];
    tally_.expect(head, steps * std::ssize(owners_[owner_of(head)].slot));
    for (int64_t s = 0; s < steps; ++s)
      see_row({head,
               first + s,
               {full.attention_row(x, s), full.logit_row(x, s), full.log_sum_exp[x * steps + s]},
               own.row(head % heads_per_owner_ * steps + s),
               softmax.log_sum_exp(h, s)});
  });
}

void MergeWatcher::see_row(const Row& row) {
  const size_t o = owner_of(row.head);
  const Owner& owner = owners_[o];
  const auto weight = importance_.row(row.head);
  MergeTally::Row sums = tally_.row_of(row.head);
  size_t begin = 0;
  for (size_t x = 0; x < owner.slot.size(); begin = owner.end[x++]) {
    const auto members = std::span(owner.member).subspan(begin, owner.end[x] - begin);
    const SlotMembers all = sum_members(members, owner.own[x], row.full, weight);
    sums.add_members(all.merged_attention, all.merged_importance);
    const double slot = row.logits[owner.slot[x]], defect = slot - all.log_mass;
    sums.add_slot(all.attention, std::exp(slot - row.log_sum_exp), defect);
    if (!tally_.wants_changes()) continue;
    const Table<float>& values = values_[row.head / work_.group_size()];
    sums.add_change(
        change_by_slot(work_, row.head, work_.info().first_step() + row.step, row.full, members,
                       std::exp(all.log_mass - row.full.log_sum_exp), all.log_mass, defect,
                       slots_.owners[o].v.row(owner.slot[x]),
                       z_.data() + (row.head * work_.info().steps() + row.step) * work_.value_dim(),
                       [&](uint32_t entry) { return values.row(entry); }));
  }
  tally_.add(row.head, row.step, sums);
}

}  // namespace kvsim
