#include "sim/replay/slots.hpp"

#include "sim/core/numbers.hpp"
#include "sim/replay/compression.hpp"
#include "sim/stages/merge/merge.hpp"

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

int64_t FullAttention::most_steps() const {
  constexpr int64_t kValues = int64_t{1} << 24;  // attention of all heads: 64 MB
  const int64_t of_step = work_.query_heads() * work_.entries();
  return std::clamp<int64_t>(kValues / of_step, 1, std::max<int64_t>(1, work_.info().steps()));
}

const std::vector<AttentionBlock>& FullAttention::rows(int64_t first, int64_t steps) {
  const Range wanted{first, first + steps};
  if (wanted == steps_) return blocks_;
  steps_ = wanted;
  blocks_.resize(static_cast<size_t>(work_.kv_heads()));
  AttentionRequest request;
  request.rows.resize(static_cast<size_t>(steps));
  std::iota(request.rows.begin(), request.rows.end(), work_.info().first_step() + first);
  request.columns = work_.entries();
  request.logits = true;
  for (request.kv_head = 0; request.kv_head < work_.kv_heads(); ++request.kv_head)
    work_.backend().attention(work_.trace(), request,
                              blocks_[static_cast<size_t>(request.kv_head)]);
  return blocks_;
}

namespace {

double column_sum(const Table<double>& table, int64_t column) {
  double sum = 0;
  for (int64_t r = 0; r < table.rows(); ++r) sum += table(r, column);
  return sum;
}

}  // namespace

MergeTally::MergeTally(int64_t heads, int64_t steps, bool changes)
    : sag_(heads, steps), shift_(heads, steps), defect_sum_(heads, steps), slots_(heads, steps),
      attention_(heads, steps), importance_(heads, steps), defects_(static_cast<size_t>(heads)) {
  if (changes) value_part_ = mass_part_ = Table<double>(heads, steps);
}

void MergeTally::add(int64_t head, int64_t step, const Row& row) {
  sag_(head, step) += row.sag_;
  shift_(head, step) += row.shift_;
  defect_sum_(head, step) += row.defect_sum_;
  slots_(head, step) += row.slots_;
  attention_(head, step) += row.attention_;
  importance_(head, step) += row.importance_;
}

double MergeTally::sag(int64_t step) const {
  return column_sum(sag_, step) / static_cast<double>(sag_.rows());
}

double MergeTally::shift(int64_t step) const {
  return column_sum(shift_, step) / static_cast<double>(shift_.rows());
}

double MergeTally::slot_mean(const Table<double>& sums, int64_t step) const {
  const double count = column_sum(slots_, step);
  return count > 0 ? column_sum(sums, step) / count : std::numeric_limits<double>::quiet_NaN();
}

double MergeTally::defect(int64_t step) const { return slot_mean(defect_sum_, step); }
double MergeTally::value_part(int64_t step) const { return slot_mean(value_part_, step); }
double MergeTally::mass_part(int64_t step) const { return slot_mean(mass_part_, step); }

std::vector<double> MergeTally::defects() const {
  std::vector<double> all;
  for (const Defects& head : defects_)
    all.insert(all.end(), head.of_head.begin(), head.of_head.end());
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
      for (const uint32_t entry : cache.members(s)) {
        owner.member.push_back(entry);
        owner.own.push_back(entry == cache.position(s));
      }
      owner.end.push_back(owner.member.size());
    }
  }
  for (int kv = 0; tally.wants_changes() && kv < work.kv_heads(); ++kv)
    values_.push_back(work.values(kv));
}

std::span<const uint32_t> MergeWatcher::members(const Owner& owner, size_t slot) const {
  const size_t begin = slot == 0 ? 0 : owner.end[slot - 1];
  return std::span(owner.member).subspan(begin, owner.end[slot] - begin);
}

void MergeWatcher::see(int64_t first, int64_t steps, const SlotSoftmax& softmax) {
  const std::vector<AttentionBlock>& all = full_.rows(first, steps);
  parallel_for(work_.query_heads(), [&](int64_t h) {
    const auto head = static_cast<int>(h);
    const AttentionBlock& full = all[static_cast<size_t>(head / work_.group_size())];
    const int x = head % work_.group_size();
    const SlotSoftmax::Logits& own = softmax.owners[owner_of(head)];
    tally_.expect(head, steps * std::ssize(owners_[owner_of(head)].slot));
    for (int64_t s = 0; s < steps; ++s)
      see_row({head, first + s, full.attention_row(x, s), full.logit_row(x, s),
               full.log_sum_exp[static_cast<size_t>(x * steps + s)],
               own.row(head % heads_per_owner_ * steps + s), softmax.log_sum_exp(h, s)});
  });
}

/// One look at each member's attention. Where that is next to nothing, float32 has lost it, and the
/// logits are summed instead.
void MergeWatcher::see_row(const Row& row) {
  constexpr double kLostInFloat = 1e-30;
  const Owner& owner = owners_[owner_of(row.head)];
  const auto weight = importance_.row(row.head);
  MergeTally::Row sums = tally_.row_of(row.head);
  size_t m = 0;
  for (size_t x = 0; x < owner.slot.size(); ++x) {
    double all = 0, merged = 0, gain = 0;
    for (; m < owner.end[x]; ++m) {
      const uint32_t entry = owner.member[m];
      const auto a = static_cast<double>(row.attention[entry]);
      all += a;
      if (owner.own[m]) continue;
      merged += a;
      gain += a * static_cast<double>(weight[entry]);
    }
    sums.add_members(merged, gain);
    double together = std::log(all) + row.full_log_sum_exp;
    if (all <= kLostInFloat) {
      together = -std::numeric_limits<double>::infinity();
      for (const uint32_t entry : members(owner, x))
        together = log_add(together, static_cast<double>(row.full_logits[entry]));
    }
    const auto slot = static_cast<double>(row.logits[owner.slot[x]]);
    sums.add_slot(all, std::exp(slot - row.log_sum_exp), slot - together);
    if (tally_.wants_changes()) see_change(row, x, together, slot - together);
  }
  tally_.add(row.head, row.step, sums);
}

/// Change of the head's output by merged slot number `slot` of its owner.
void MergeWatcher::see_change(const Row& row, size_t slot, double together, double defect) {
  const size_t o = owner_of(row.head);
  const Owner& owner = owners_[o];
  const Table<float>& values = values_[static_cast<size_t>(row.head / work_.group_size())];
  std::vector<double> mean(static_cast<size_t>(work_.value_dim()), 0.0);
  for (const uint32_t entry : members(owner, slot)) {
    const double weight = std::exp(static_cast<double>(row.full_logits[entry]) - together);
    const auto value = values.row(entry);
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += weight * static_cast<double>(value[c]);
  }
  const std::span<const float> value = slots_.owners[o].v.row(owner.slot[slot]);
  const double attention = std::exp(together - row.full_log_sum_exp);
  if (attention > kNearlyAll) {
    const int64_t query = work_.info().first_step() + row.step;
    const RestAttention rest = rest_attention(work_.backend(), work_.trace(), row.head, {&query, 1},
                                              members(owner, slot));
    tally_.add_change(row.head, row.step,
                      slot_change_beside<float>(together - rest.log_mass[0], defect, mean, value,
                                                rest.mean.row(0)));
    return;
  }
  const std::span<const float> z(
      z_.data() + (row.head * work_.info().steps() + row.step) * work_.value_dim(), mean.size());
  tally_.add_change(row.head, row.step,
                    slot_change<float, float>(attention, defect, mean, value, z));
}

}  // namespace kvsim
